"""``muster doctor``: each thing that can be missing is found, named by its check, and ends with status 1."""

from __future__ import annotations

import datetime
import json
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Sink
from aiosmtpd.smtp import AuthResult

from muster import store
from muster.cli.doctor import disks, doctor, records, repairs
from muster.cli.doctor.checks import Mark
from muster.integration.airflow_api import AirflowClient, Pool
from muster.model import dags
from muster.model.runs import Job, RunKey
from muster.model.states import State
from muster.reporting import bundles
from muster.settings import Settings, settings
from muster_criteria.model import Verdict
from muster_criteria.sku_files.skus import SHIPPED
from muster_demo.services import free_port
from tests.muster import fleet
from tests.muster.integration.test_airflow_api import Airflow, waiting
from tests.support.servers import sshd

Muster = Callable[..., "tuple[int, str, str]"]
HEALTHY = {name: {"status": "healthy"} for name in doctor.COMPONENTS}


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch, sqlite_db: str) -> Airflow:
    """An API with every DAG, the pool muster_burn and healthy components."""
    api = Airflow()
    pages = {
        "/api/v2/dags/~/dagRuns/~/taskInstances": {"task_instances": []},
        "/api/v2/dags": {"dags": [{"dag_id": name, "is_paused": False} for name in dags.ALL]},
        "/api/v2/plugins": {"plugins": [{"name": "muster"}]},
        "/api/v2/pools": {
            "pools": [{"name": "muster_burn", "slots": 16, "scheduled_slots": 0, "include_deferred": True}]
        },
    }

    def answer(request: httpx.Request) -> httpx.Response | None:
        page = pages.get(request.url.path)
        return httpx.Response(200, json={**page, "total_entries": 1}) if page else None

    def serve(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=HEALTHY) if request.url.path.endswith("/health") else api(request)

    api.override = answer

    def made(timeout_s: float = 30.0) -> AirflowClient:
        return AirflowClient("http://airflow", "ada", "right", transport=httpx.MockTransport(serve))

    monkeypatch.setattr(AirflowClient, "from_settings", made)
    monkeypatch.setattr(disks, "LOW", 0.0)  # whatever this machine's are
    return api


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private key, and the Airflow connection that names it."""
    server = sshd.Sshd(tmp_path / "keys")
    extra = {"key_file": str(server.key_file)}
    monkeypatch.setenv("AIRFLOW_CONN_MUSTER_SSH", json.dumps({"conn_type": "ssh", "login": "muster", "extra": extra}))
    return server.key_file


def marks(out: str) -> dict[str, str]:
    return {check["item"]: check["mark"] for check in json.loads(out)}


@pytest.mark.needs_sshd
def test_a_complete_installation_has_nothing_missing(muster: Muster, airflow: Airflow, key: Path) -> None:
    status, out, _ = muster("doctor", "--json")
    assert (status, marks(out)) == (
        0,
        {"MUSTER_HOME": "ok", "fleet records": "ok", "SKU files": "ok", "node side": "ok", "SSH login": "ok",
         "Airflow": "ok", "DAGs": "ok", "pools": "ok", "mail": "advice"},
    )  # fmt: skip


@pytest.mark.needs_sshd
def test_whatever_is_missing_is_named(
    muster: Muster, airflow: Airflow, key: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.nodes.add(fleet.new_node("a", pool="rack-r1"))
    key.unlink()
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path / "nowhere"))
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    status, out, _ = muster("doctor", "--json")
    found = marks(out)
    assert status == 1
    assert {item for item, mark in found.items() if mark == "missing"} == {"SKU files", "SSH login", "pools", "mail"}
    assert all(check["fix"] for check in json.loads(out) if check["mark"] == "missing")


@pytest.mark.needs_sshd
def test_a_key_file_that_depends_on_the_working_directory_is_missing(
    muster: Muster, airflow: Airflow, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"key_file": key.name}
    monkeypatch.setenv("AIRFLOW_CONN_MUSTER_SSH", json.dumps({"conn_type": "ssh", "login": "muster", "extra": extra}))
    monkeypatch.chdir(key.parent)
    assert marks(muster("doctor", "--json")[1])["SSH login"] == "missing"


@pytest.mark.needs_sshd
def test_retries_that_a_wrong_clock_put_off_are_missing_and_begun_by_a_command(
    muster: Muster, airflow: Airflow, key: Path
) -> None:
    hours, now = datetime.timedelta(hours=5), store.clock.now()
    tasks = [waiting("n1__r", now + hours), waiting("n2__r", now - hours)]
    pages, cleared = airflow.override, list[str]()

    def answer(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/clearTaskInstances"):
            cleared.append(json.loads(request.content)["dag_run_id"])
            return httpx.Response(200, json={"task_instances": []})
        if request.url.path.endswith("/taskInstances"):
            listed = [task for task in tasks if task["state"] == request.url.params["state"]]
            return httpx.Response(200, json={"task_instances": listed, "total_entries": len(listed)})
        return pages(request)

    airflow.override = answer
    status, out, _ = muster("doctor", "--json")
    assert (status, marks(out)["retries"]) == (1, "missing")
    assert [each["run_id"] for each in json.loads(muster("runs", "retry", "--dry-run", "--json")[1])] == ["n1__r"]
    assert cleared == []
    assert muster("runs", "retry")[0] == 0
    assert cleared == ["n1__r"]


def test_a_login_by_password_is_missing_and_its_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "ssh", "login": "muster", "password": "s3cret"}
    monkeypatch.setenv("AIRFLOW_CONN_MUSTER_SSH", json.dumps(connection))
    found = doctor.ssh_connection(settings())
    assert found.mark is Mark.MISSING
    assert "s3cret" not in f"{found}"


def test_a_setting_that_cannot_be_used_is_the_first_and_only_line(
    muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_BURN_SLOTS", "none")
    status, out, _ = muster("doctor", "--json")
    assert (status, marks(out)) == (1, {"settings": "missing"})


def test_sources_of_reports_and_a_health_policy_that_cannot_be_used_are_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def found() -> dict[str, Mark]:
        return {each.item: each.mark for each in doctor.between_tests(settings())}

    assert found() == {}
    monkeypatch.setenv("MUSTER_REPORT_SOURCES", json.dumps({"epilog": {"sha256": "ab" * 32}}))
    assert found() == {"reports": Mark.OK}
    monkeypatch.setenv("MUSTER_REPORT_SOURCES", json.dumps({"epilog": {"sha256": "ab" * 32, "token": "t0p"}}))
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "health.yaml").write_text("policy: mine")
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path))
    assert found() == {"health policy": Mark.MISSING, "reports": Mark.MISSING}
    assert "t0p" not in str(list(doctor.between_tests(settings())))
    monkeypatch.setenv("MUSTER_REPORT_SOURCES", json.dumps({"bmc": {"sha256": "ab" * 32}, "a": {}, "b": {}}))
    (check,) = (each for each in doctor.between_tests(settings()) if each.item == "reports")
    assert all(f"MUSTER_REPORT_SOURCES: {name}: " in check.message for name in ("bmc", "a", "b"))


GROUP = "{label: repair, value: auto, %s}"


@pytest.mark.parametrize(
    ("health", "repair", "free", "marks"),
    [
        ("mode: repair", "rungs: [reset_gpu]", 2**40, {"evidence": Mark.OK}),
        ("mode: repair", "rungs: [reset_gpu]", 1, {"evidence": Mark.MISSING}),
        ("mode: repair", "", 1, {"repairs": Mark.ADVICE}),
        ("", "rungs: [reset_gpu]", 2**40, {"repairs": Mark.ADVICE, "evidence": Mark.OK}),
        ("", "", 1, {}),
        ("", "rungs: [reset_gpus]", 1, {"repair policy": Mark.MISSING}),
    ],
)
def test_repairs_need_both_policies_and_room_for_their_evidence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, health: str, repair: str, free: int, marks: dict[str, Mark]
) -> None:
    (tmp_path / "policies").mkdir()
    for name, key, given in (("health", "groups", health), ("repair", "enabled", repair)):
        text = (SHIPPED / "policies" / f"{name}.yaml").read_text().replace("enabled: []\n", "")
        more = f"\n{key}: [{GROUP % given}]\n" if given else ""
        (tmp_path / "policies" / f"{name}.yaml").write_text(text + more)
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path))
    monkeypatch.setenv("MUSTER_ARCHIVE", str(tmp_path / "archive"))
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(bundles.shutil, "disk_usage", lambda _: usage)
    assert {each.item: each.mark for each in repairs.examine()} == marks


def test_the_key_that_signs_is_the_one_that_signed(
    sqlite_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def marks() -> list[Mark]:
        return [each.mark for each in records.signing_key()]

    assert marks() == [], "`muster db upgrade` makes it"
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    store.nodes.move("gpu-0001", State.PRODUCTION, "Ada", "needed now")
    assert marks() == [Mark.OK]
    monkeypatch.setenv("MUSTER_DATABASE_URL", sqlite_db)
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "another machine"))
    assert marks() == [Mark.MISSING]
    store.signing.new_key()
    assert marks() == [Mark.ADVICE]
    for number in range(5):  # their ids are drawn
        store.nodes.add(fleet.new_node(f"gpu-1{number}"))
        fleet.qualify(f"gpu-1{number}")
        store.nodes.move(f"gpu-1{number}", State.PRODUCTION, "Ada", "needed now")
        assert marks() == [Mark.OK]
    monkeypatch.setenv("MUSTER_CERTIFICATE_KEY_FILE", str(tmp_path / "none"))
    assert marks() == [Mark.MISSING]


def test_a_node_that_refuses_jobs_by_its_fence_is_missing_until_the_fence_is_raised(sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node())
    lease = fleet.begin()
    parsed, raw = fleet.result()
    job = Job(lease.dag_id, lease.run_id, "intake", "0.0", "final", "", fence=lease.token)
    store.runs.record_job(job)
    fenced = parsed.model_copy(update={"end": "fenced", "fence": lease.token})
    fleet.record(lease.key, fenced, fleet.judgement("intake", Verdict.INCONCLUSIVE), raw)
    store.leases.release(lease.key, "over")
    assert [each.mark for each in records.fences()] == [Mark.MISSING]
    store.leases.raise_fence("gpu-0001", lease.token + 7, "Ada", "restored from Sunday")
    assert list(records.fences()) == []


def test_dags_that_are_absent_are_missing_and_paused_ones_are_advice() -> None:
    every = dict.fromkeys(dags.ALL, False)
    assert doctor.dags(every).mark is Mark.OK
    assert doctor.dags(every | {"housekeeping": True}).mark is Mark.ADVICE
    assert doctor.dags({"housekeeping": False}).mark is Mark.MISSING


def test_a_paused_dag_whose_runs_hold_nodes_is_missing(sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node())
    paused = {"node_qualification": True, "node_revalidation": False, "repair": True}
    assert list(records.frozen(paused)) == []
    for dag_id, found in (("node_revalidation", []), ("repair", [Mark.MISSING])):
        key = RunKey(dag_id, "gpu-0001__check")
        store.leases.acquire("gpu-0001", key)
        assert [each.mark for each in records.frozen(paused)] == found
        store.leases.release(key, "over")


def test_records_without_tables_are_missing_and_a_large_fleet_on_sqlite_is_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    assert doctor.database().mark is Mark.MISSING
    store.engine.upgrade()
    for number in range(doctor.SQLITE_NODES_MAX + 1):
        store.nodes.add(fleet.new_node(f"n{number}", host=f"10.0.0.{number}"))
    assert doctor.database().mark is Mark.ADVICE


def test_a_pool_that_ignores_deferred_tasks_bounds_nothing(sqlite_db: str) -> None:
    assert doctor.pools({"muster_burn": Pool(16, 0, False)}, Settings()).mark is Mark.MISSING


@pytest.mark.parametrize(("slots", "mark"), [(1, Mark.ADVICE), (2, Mark.OK), (-1, Mark.OK)])
def test_a_pool_that_serialises_a_rack_is_named_with_what_waits(sqlite_db: str, slots: int, mark: Mark) -> None:
    """Muster makes a pool that a run names with one slot."""
    for number in range(3):
        store.nodes.add(fleet.new_node(f"n{number}", pool="rack-7"))
    check = doctor.pools({"muster_burn": Pool(1, 0, True), "rack-7": Pool(slots, 2, True)}, Settings())
    assert check.mark is mark
    assert "rack-7" in check.message
    assert "2 waiting" in check.message


def test_a_node_that_has_left_the_fleet_needs_no_pool(sqlite_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node("n1", pool="rack-7"))
    store.nodes.move("n1", State.RETIRED, "Ada", "sold")
    assert doctor.pools({"muster_burn": Pool(16, 0, True)}, Settings()).mark is Mark.OK
    monkeypatch.setattr(doctor, "SQLITE_NODES_MAX", 0)
    assert doctor.database().mark is Mark.OK


class Refuses:
    """An authenticator of aiosmtpd that knows one password."""

    def __call__(self, server: object, session: object, envelope: object, mechanism: str, data: object) -> AuthResult:
        return AuthResult(success=getattr(data, "password", b"") == b"right", handled=False)


@pytest.fixture
def smtp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., doctor.Check]]:
    """A real mail server that offers STARTTLS or not, and the check of a connection to it."""
    servers: list[Controller] = []

    def check(*, tls: bool, password: str = "", trusted: bool = True) -> doctor.Check:
        context = None
        if tls:
            certificate = tmp_path / "server.pem"
            subprocess.run(
                ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                 "-keyout", certificate, "-out", tmp_path / "ca.pem", "-days", "2", "-subj", "/CN=localhost",
                 "-addext", "subjectAltName=DNS:localhost"],
                check=True, capture_output=True,
            )  # fmt: skip
            certificate.write_text((tmp_path / "ca.pem").read_text() + certificate.read_text())
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        server = Controller(
            Sink(), hostname="localhost", port=free_port(), tls_context=context, authenticator=Refuses(),
            auth_require_tls=tls,
        )  # fmt: skip
        server.start()
        servers.append(server)
        connection = {
            "conn_type": "smtp", "host": "localhost", "port": server.port, "extra": {"disable_ssl": True},
            "login": "fleet" if password else "", "password": password,
        }  # fmt: skip
        monkeypatch.setenv("AIRFLOW_CONN_SMTP_DEFAULT", json.dumps(connection))
        monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
        return doctor.mail(settings())

    yield check
    for server in servers:
        server.stop()


def test_the_mail_server_is_asked_to_encrypt_and_to_let_us_in(smtp: Callable[..., doctor.Check]) -> None:
    assert smtp(tls=True, password="right").mark is Mark.OK
    refused = smtp(tls=True, password="wrong")
    assert refused.mark is Mark.MISSING
    assert "'fleet'" in refused.message, "whose login"
    assert "smtp_default" in refused.message, "of which connection"


def test_a_mail_server_without_starttls_or_with_a_certificate_of_its_own_is_missing(
    smtp: Callable[..., doctor.Check],
) -> None:
    assert smtp(tls=False).mark is Mark.MISSING
    foreign = smtp(tls=True, trusted=False)
    assert (foreign.mark, "SSL_CERT_FILE" in foreign.fix, "no encryption" in foreign.message) == (
        Mark.MISSING, True, False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("MUSTER_MAIL_TO", "a@x.org, fleet operations"),
        ("MUSTER_MAIL_FROM", "muster"),
        ("MUSTER_MAIL_RULES", '[{"name": "oncall", "to": ["oncall@x.org, second@x.org"]}]'),
    ],
)
def test_an_address_that_no_mail_can_have_is_named(monkeypatch: pytest.MonkeyPatch, setting: str, text: str) -> None:
    monkeypatch.setenv(setting, text)
    found = doctor.mail(settings())
    assert (found.mark, setting in found.message, "is not a mail address" in found.message) == (
        Mark.MISSING, True, True,
    )  # fmt: skip


def test_a_scheduler_that_is_down_is_missing(sqlite_db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert list(doctor.schedulers(settings())) == []
    conf = {"alpha": {"kind": "slurm", "slurm_conf": str(tmp_path / "none.conf")}}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps(conf))
    monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "1")  # sinfo looks long for a configuration that is not there
    assert [(each.mark, each.item) for each in doctor.schedulers(settings())] == [(Mark.MISSING, "scheduler alpha")]
