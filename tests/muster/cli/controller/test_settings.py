"""A setting that is accepted can be used, at its bounds too; one that cannot is refused when settings are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pydantic
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from muster import store
from muster.admission.backends.kubernetes.login import KubernetesLogin
from muster.admission.backends.slurm.backend import SlurmSettings
from muster.audit import sinks
from muster.errors import AirflowUnreachable, BadSettings, ControllerFault
from muster.integration.airflow_api import AirflowClient
from muster.judging import verdict
from muster.model.runs import RunKey
from muster.model.states import State
from muster.remote.bmc.bmc import Bmc
from muster.remote.connection.login import Credentials
from muster.settings import Settings, settings
from muster_criteria.model import Verdict
from tests.docs.reference.settings import unit
from tests.muster import fleet
from tests.muster.api.conftest import app
from tests.support import lives

NUMBERS = [name for name, field in Settings.model_fields.items() if type(field.default) in (int, float)]
CENTURY = {"s": 3.16e9, "min": 5.3e7, "h": 8.8e5, "d": 36_600}
"""By unit, a little more than a century."""


def accepted(name: str, value: float | str) -> bool:
    try:
        Settings.model_validate({name: value})
    except pydantic.ValidationError:
        return False
    return True


def largest(name: str) -> int:
    """The largest whole number that the setting takes."""
    low, high = 0, 10**30
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accepted(name, middle) or middle < 5 else (low, middle)
    return low


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_finite_and_no_time_is_longer_than_a_century(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for value in ("inf", "nan", "1e30", str(10**30), str(round(CENTURY.get(unit(name), 2e9)))):
        monkeypatch.setenv(f"MUSTER_{name.upper()}", value)
        with pytest.raises(BadSettings, match=f"MUSTER_{name.upper()}"):
            settings()


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_so_is_a_number_in_a_table(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MUSTER_REVALIDATION_DOMAIN_KW", f'{{"r1": "{value}"}}')
    with pytest.raises(BadSettings):
        settings()


@pytest.mark.usefixtures("fleet_db")
def test_what_computes_with_the_settings_works_at_their_bounds(
    muster: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Else a FAIL is not recorded, and the node that failed stays in service."""
    for name in NUMBERS:
        if unit(name) in CENTURY:
            monkeypatch.setenv(f"MUSTER_{name.upper()}", str(largest(name)))
    monkeypatch.setenv("MUSTER_REVALIDATION_SHARE", "1e-300")
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
    monkeypatch.setenv("MUSTER_BREAKER_SHARE", "1")
    monkeypatch.setenv("MUSTER_AIRFLOW_URL", "http://127.0.0.1:1")
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("MUSTER_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    for name in ("a", "b", "c", "d"):
        store.nodes.add(fleet.new_node(name, rack="r1"))
        lives.in_production(name)
    assert store.certificates.of_node("a")
    for name in ("a", "b"):
        run = RunKey("node_revalidation", f"{name}__again")
        store.leases.acquire(name, run)
        store.runs.begin(run, name, "short", "again")
        store.runs.begin_stage(run, "integrity")
        verdict.record(
            run, fleet.judgement("integrity", verdict=Verdict.FAIL, findings=(fleet.FINDING,)), store.stages.Sent()
        )
        assert store.runs.finish(run, Verdict.FAIL, "corrupts").state_after is State.QUARANTINE
        store.leases.release(run, "over")
    store.retention.apply()
    assert muster("housekeeping", "--dry-run")[0] == 0
    for command in ("status", "plan", "settings"):
        status, _, said = muster(command, "--json")
        assert status == 0, said
    assert TestClient(app()).get("/metrics", headers={"Authorization": "Bearer s3cret"}).status_code == 200


URLS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["http://", "https://", "HTTP:", "http:/", "ftp://", " http://", ""]),
    st.sampled_from(["localhost", "10.0.0.7", "[::1]", "[::1", "a_b.example", "ada:pw@host", "xn--a", ""]) | st.text(),
    st.sampled_from(["", ":8080", ":80a80", ":0", ":99999", ":", ":-1"]),
    st.sampled_from(["", "/", "/airflow/", "?x=1", "#x", "\n", "\t/x", " "]) | st.text(),
)


@given(url=URLS)
def test_an_address_of_airflow_that_is_accepted_ends_no_command_in_a_traceback(url: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"state": "success"})

    if accepted("airflow_url", url):
        asked = Settings.model_validate({"airflow_url": url}).airflow_url
        with (
            AirflowClient(asked, token="t", transport=httpx.MockTransport(answer)) as client,
            contextlib.suppress(AirflowUnreachable),
        ):
            assert client.run_state("dag", "run") == "success"


@pytest.mark.parametrize("url", ["http://localhost:80a80", "localhost:8080", "http://", "http://host:8080 "])
def test_doctor_names_an_address_that_is_none(
    muster: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, muster_home: Path, url: str
) -> None:
    monkeypatch.setenv("MUSTER_AIRFLOW_URL", url)
    status, out, said = muster("doctor")
    assert status == 1
    assert "MUSTER_AIRFLOW_URL" in out + said


@pytest.mark.parametrize(
    "url", ["http://airflow-api-server:8080", "https://muster.example.org/airflow/", "http://[::1]:80"]
)
def test_usual_addresses_are_accepted(url: str) -> None:
    assert accepted("airflow_url", url)


PATHS = [name for name, field in Settings.model_fields.items() if "Path" in str(field.annotation)]


@pytest.mark.parametrize("name", [*PATHS, "sku_path", "shared_path"])
@pytest.mark.parametrize("path", ["x", "./x", "x/y", "../x", "x:/y"])
def test_a_relative_path_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, path: str) -> None:
    """It would be other records, and another key, in each working directory."""
    monkeypatch.setenv(f"MUSTER_{name.upper()}", path)
    with pytest.raises(BadSettings, match=f"MUSTER_{name.upper()}"):
        settings()


@pytest.mark.parametrize("url", ["sqlite:///x.db", "sqlite:///~/x.db", "sqlite+pysqlite:///x/y.db?timeout=9"])
def test_so_is_that_of_an_sqlite_file(url: str) -> None:
    assert not accepted("database_url", url)
    assert accepted("database_url", url.replace(":///", ":////"))


OTHERS: dict[str, Callable[[str], str | None]] = {
    "the SSH connection": lambda path: Credentials.of_connection("u", None, {"key_file": path}).key_file,
    "a BMC": lambda path: str(Bmc(url="https://10.0.0.7", verify=path).verify),
    "slurm": lambda path: SlurmSettings(kind="slurm", slurm_conf=path).slurm_conf,
    "kubernetes": lambda path: KubernetesLogin(kube_config_path=path).kube_config_path,
}


@pytest.mark.parametrize("of", OTHERS)
@pytest.mark.parametrize("path", ["x", "./x", "x/y", "../x", "x:/y"])
def test_so_is_that_of_another_description(of: str, path: str) -> None:
    """Each process that uses it has a working directory of its own."""
    with pytest.raises((ControllerFault, pydantic.ValidationError), match="it is relative"):
        OTHERS[of](path)
    assert [OTHERS[of](path) for path in ("/x", "~/x")] == ["/x", str(Path.home() / "x")]


@pytest.mark.parametrize(
    ("kind", "field"),
    [("file", "path"), *[("syslog", f"{which}_file") for which in ("ca", "cert", "key")], ("http", "token_file")],
)
def test_so_is_that_of_a_receiver_of_the_audit_stream(kind: str, field: str) -> None:
    others = {"syslog": {"host": "h"}, "http": {"url": "https://h"}}.get(kind, {})
    assert sinks.sink("siem", {"kind": kind, **others, field: "/x/y"})
    with pytest.raises(BadSettings, match=field):
        sinks.sink("siem", {"kind": kind, **others, field: "x/y"})
