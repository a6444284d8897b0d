"""What people decide on the command line: waivers, adoption, replacement; and that a dry run changes nothing at all."""

from __future__ import annotations

import datetime
import json
import pwd
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from muster import store
from muster.integration.airflow_api import AirflowClient
from muster.model.dags import ADMISSION
from muster.model.repairs import Fault
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.database.engine import reading
from muster.store.database.models import Base
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.cli.conftest import refusal, refused
from tests.muster.cli.test_json import COMMANDS
from tests.muster.integration.test_airflow_api import Airflow

Muster = Callable[..., "tuple[int, str, str]"]

NODE = "gpu-0001"
WHY = ("--reason", "because", "--as", "Ada")
DAY = f"{datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30):%Y-%m-%d}"


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch, fleet_db: str) -> Airflow:
    api = Airflow()

    def made(timeout_s: float = 30.0) -> AirflowClient:
        return AirflowClient("http://airflow", "ada", "right", transport=httpx.MockTransport(api))

    monkeypatch.setattr(AirflowClient, "from_settings", made)
    return api


def everything() -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, as the database has it."""
    with reading() as session:
        return {
            name: sorted((tuple(row) for row in session.execute(text(f"SELECT * FROM {name}"))), key=str)
            for name in Base.metadata.tables
        }


def asks(request: httpx.Request) -> httpx.Response | None:
    """Airflow with one open question, of the run ``asks`` about gpu-0005."""
    if request.url.path.endswith("/dagRuns/asks"):
        return httpx.Response(200, json={"conf": {"node": "gpu-0005"}})
    if "hitlDetails" not in request.url.path:
        return None
    instance = {"dag_id": "admission", "dag_run_id": "asks", "task_id": "ask"}
    question = {"task_instance": instance, "subject": "Admit gpu-0005?", "options": ["Approve", "Reject"]}
    return httpx.Response(200, json={"hitl_details": [question], "total_entries": 1})


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.parametrize(
    ("login", "token", "posted"), [("muster", "", 0), ("svc-netbox", "", 0), ("ada", "", 1), ("muster", "t", 1)]
)
def test_an_answer_under_a_shared_login_is_refused_before_it_is_given(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, login: str, token: str, posted: int
) -> None:
    """The run refuses it too, but only after the question is closed. Whose a token is, Airflow alone knows."""
    airflow.override = asks
    store.nodes.add(fleet.new_node("gpu-0005"))
    monkeypatch.setenv("MUSTER_PROGRAMS", "provisioner, SVC-netbox")
    monkeypatch.setenv("MUSTER_AIRFLOW_USERNAME", login)
    monkeypatch.setenv("MUSTER_AIRFLOW_TOKEN", token)
    status, _, _ = muster("approve", "asks", "--option", "Approve", "--reason", "because")
    assert status == 1 - posted
    assert sum(each.startswith("PATCH") for each in airflow.log) == posted


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.parametrize(("person", "posted"), [("grace", 0), ("Ada Lovelace", 0), ("Ada", 1), ("ada@example.org", 1)])
def test_an_answer_under_the_login_of_another_person_is_refused(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, person: str, posted: int
) -> None:
    airflow.override = asks
    store.nodes.add(fleet.new_node("gpu-0005"))
    monkeypatch.setenv("MUSTER_AIRFLOW_USERNAME", "ada")
    monkeypatch.setenv("MUSTER_PERSON", person)
    muster("approve", "asks", "--option", "Approve", "--reason", "because")
    assert sum(each.startswith("PATCH") for each in airflow.log) == posted


@pytest.mark.usefixtures("fleet_db")
def test_a_second_answer_is_told_whose_the_first_was(muster: Muster, airflow: Airflow) -> None:
    airflow.override = asks
    store.nodes.add(fleet.new_node())
    key = RunKey(ADMISSION, "answered")
    store.questions.put(key, NODE, store.questions.newest(NODE), "Admit it?", ("Approve", "Reject"))
    store.questions.answer(key, "Reject", "grace", "its fan is loud")
    status, _, err = muster("approve", "answered", "--option", "Approve", "--reason", "because")
    assert status == 1
    assert all(word in err for word in ("grace", "Reject", "its fan is loud"))


@pytest.mark.usefixtures("fleet_db")
def test_a_question_that_has_its_answer_is_not_put_again(muster: Muster, airflow: Airflow) -> None:
    """Airflow may have forgotten its run, and would start another one of its id."""
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    key = RunKey(ADMISSION, f"{NODE}__by-hand")
    store.questions.put(key, NODE, store.questions.newest(NODE))
    assert muster("admit", NODE, "--dry-run")[0] == 0
    store.questions.answer(key, "Admit", "grace", "it is well")
    status, out, err = muster("admit", NODE)
    assert (status, key.run_id in out + err) == (1, True)
    assert not any(each.startswith("POST") and "dagRuns" in each for each in airflow.log)


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.parametrize("command", ["approve", "status"])
def test_a_question_whose_answer_would_be_refused_is_not_listed(muster: Muster, airflow: Airflow, command: str) -> None:
    airflow.override = asks
    store.nodes.add(fleet.new_node("gpu-0005"))
    store.questions.put(RunKey(ADMISSION, "asks"), "gpu-0005", store.questions.newest("gpu-0005"))
    assert "asks" in muster(command)[1]
    fleet.qualify("gpu-0005", "later")
    assert "asks" not in muster(command)[1]


def test_an_answer_about_a_node_under_test_is_refused_before_it_is_given(muster: Muster, airflow: Airflow) -> None:
    airflow.override = asks
    store.nodes.add(fleet.new_node("gpu-0005"))
    fleet.begin("gpu-0005", "at-work")
    for dry_run in ((), ("--dry-run",)):
        status, _, err = muster("approve", "asks", "--option", "Approve", "--reason", "because", *dry_run)
        assert (status, "run at-work" in err) == (1, True)
    assert not any(each.startswith("PATCH") for each in airflow.log)


def failed() -> str:
    """A node whose run failed, registered again; returns the finding's id."""
    store.nodes.add(fleet.new_node(serials={"system": "S-1", "gpu3": "G-3"}))
    lease = fleet.fail()
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", "known")
    return store.reporting.run(lease.key).stages[0].judgement.findings[0].id


@pytest.mark.usefixtures("fleet_db")
def test_the_login_is_recorded_beside_the_name_that_is_typed(muster: Muster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's LOGNAME is as easily typed as a name."""
    store.nodes.add(fleet.new_node())
    monkeypatch.setenv("SUDO_UID", "1")
    login = f"os:{pwd.getpwuid(1).pw_name}"
    for name in ("LOGNAME", "USER", "MUSTER_PERSON"):
        monkeypatch.setenv(name, "mallory")
    assert muster("node", "move", NODE, "retired", *WHY)[0] == 0
    event = store.nodes.events(NODE)[-1]
    assert (event.actor, event.login) == ("Ada", login)
    assert f"\tAda\t{login}\t" in muster("node", "history", NODE)[1]


@pytest.mark.usefixtures("fleet_db")
class TestWaivers:
    def test_from_the_report_to_the_waiver_and_back(self, muster: Muster) -> None:
        finding = failed()
        for shows in (("runs", "show", "gpu-0001__new"), ("node", "show", NODE)):
            assert f"{finding}\tcritical\tgpu3\t" in muster(*shows)[1], "the id that `muster waive` takes"
        assert muster("waive", finding, "--until", DAY, *WHY)[0] == 0
        (given,) = store.waivers.find()
        assert (given.rule, given.metric, given.subject, given.person, given.reason) == (
            "floor", "gemm_rate", "gpu G-3", "Ada", "because",
        )  # fmt: skip
        assert given.until == datetime.datetime.fromisoformat(f"{DAY}T00:00+00:00") + datetime.timedelta(days=1)
        (listed,) = json.loads(muster("waivers", "list", "--node", NODE, "--json")[1])
        assert (listed["id"], listed["finding"], listed["person"]) == (1, finding, "Ada")
        assert f"1\t{finding}\t" in muster("waivers", "list")[1]
        shown = json.loads(muster("node", "show", NODE, "--json")[1])
        assert [each["finding"] for each in shown["waivers"]] == [finding]
        lease = fleet.fail(run_id="again")
        report = json.loads(muster("runs", "show", "again", "--json")[1])
        assert [finding in each for each in report["waivers"]] == [True]
        (found,) = report["stages"][0]["judgement"]["findings"]
        assert found["waived"] == str(given)
        assert store.runs.stages(lease.key)[0].verdict is Verdict.WARN
        assert muster("waivers", "revoke", "1", *WHY)[0] == 0
        assert json.loads(muster("waivers", "list", "--json")[1]) == []
        (over,) = json.loads(muster("waivers", "list", "--over", "--json")[1])
        assert over["revoked_at"]

    def test_the_way_to_a_test_leads_out_of_quarantine(self, muster: Muster) -> None:
        finding = failed()
        store.nodes.move(NODE, State.QUARANTINE, "Ada", "it failed")
        out = muster("waive", finding, "--until", DAY, *WHY)[1]
        assert re.findall(rf"muster (.+?) {NODE}", out) == ["node move", "qualify"]

    @pytest.mark.parametrize(
        ("args", "kind"),
        [
            (["f-000000000000", "--until", DAY, *WHY], "UnknownFinding"),
            (["f-0", "--until", "soon", *WHY], "BadDay"),
            (["f-0", "--until", "2020-01-01", *WHY], "BadWaiver"),
            (["f-0", "--until", DAY, "--reason", " ", "--as", "Ada"], "MusterError"),
            (["f-0", "--until", DAY, "--reason", "x", "--as", "root"], "MusterError"),
        ],
    )
    def test_what_is_no_waiver_is_one_sentence(self, muster: Muster, args: list[str], kind: str) -> None:
        status, out, err = muster("waive", *args)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert refusal(muster("waive", *args, "--json")) == kind
        assert store.waivers.find(over=True) == []


@pytest.mark.usefixtures("fleet_db")
class TestFleetsThatAlreadyRun:
    def test_a_fleet_is_adopted_seen_and_verified(self, muster: Muster, tmp_path: Path) -> None:
        path = tmp_path / "fleet.csv"
        path.write_text(
            "name,host,sku,host_key\n"
            + "\n".join(f"n{number},h{number},cpu-generic,{fleet.host_key(str(number))}" for number in range(3))
        )
        assert muster("node", "adopt", "--file", str(path), *WHY)[0] == 0
        assert {node.name for node in store.nodes.find() if node.shadow} == {"n0", "n1", "n2"}
        before = everything()
        assert muster("node", "adopt", "--file", str(path), *WHY)[0] == 0
        assert everything() == before, "adopted already"
        assert muster("node", "list")[1].count("\tshadow") == 3
        assert json.loads(muster("node", "show", "n1", "--json")[1])["node"]["shadow"] is True
        assert muster("node", "verify", "n1", *WHY)[0] == 0
        assert muster("node", "list")[1].count("\tshadow") == 2
        assert refusal(muster("node", "adopt", "nobody", *WHY, "--json")) == "BadInventory"
        assert refusal(muster("node", "adopt", *WHY, "--json")) == "MusterError"

    def test_a_machine_is_replaced_and_its_history_found_by_serial(self, muster: Muster) -> None:
        failed()
        key = fleet.host_key("new")
        assert muster("node", "replace", NODE, "--host-key", key, "--serial", "system=S-2", *WHY)[0] == 0
        assert store.nodes.get(NODE).state is State.REGISTERED
        shown = json.loads(muster("node", "show", NODE, "--json")[1])
        assert [(part["slot"], part["serial"]) for part in shown["parts"] if not part["until"]] == [("system", "S-2")]
        assert shown["runs"] == []
        assert shown["node"]["machine_since"] > shown["node"]["added_at"]
        part = json.loads(muster("node", "part", "S-1", "--json")[1])
        assert [(place["kind"], place["node"], place["slot"]) for place in part["places"]] == [
            ("system", NODE, "system")
        ]
        assert [(run["run_id"], run["verdict"]) for run in part["runs"]] == [("gpu-0001__new", "FAIL")]
        assert json.loads(muster("node", "part", "S-9", "--json")[1]) == {"places": [], "runs": []}
        assert refusal(muster("node", "replace", NODE, "--host-key", key, *WHY, "--json")) == "BadNode"
        bad = muster("node", "replace", NODE, "--serial", "x", "--host-key", key, *WHY, "--json")
        assert refusal(bad) == "MusterError"

    def test_the_bmc_of_another_machine_is_named_or_replaced(self, muster: Muster) -> None:
        old, new = ({"url": f"https://10.0.0.{number}"} for number in (7, 8))
        store.nodes.add(fleet.new_node(NODE, bmc=old))
        out = muster("node", "replace", NODE, "--host-key", fleet.host_key("second"), *WHY)[1]
        assert (store.nodes.get(NODE).bmc, old["url"] in out) == (old, True)
        given = ("--host-key", fleet.host_key("third"), "--bmc", json.dumps(new))
        out = muster("node", "replace", NODE, *given, *WHY)[1]
        assert (store.nodes.get(NODE).bmc, old["url"] in out) == (new, False)


READS_ONLY = {
    "status", "plan", "digest", "export", "judge", "settings", "doctor", "node list", "node show", "node history",
    "node check", "node part", "node schedulers", "runs list", "runs show", "snapshots list", "waivers list",
    "mail list",
    "certificate show", "certificate list", "certificate verify", "certificate key", "golden list", "sku list",
    "sku show", "sku lint", "device-events show", "health show", "health compare", "spares", "evidence list",
    "evidence show", "racks list",
}  # fmt: skip


def test_every_command_that_changes_anything_can_be_rehearsed() -> None:
    bare = {
        " ".join(path)
        for path, command in COMMANDS.items()
        if not any("--dry-run" in option.opts for option in getattr(command, "params"))  # noqa: B009 - as in COMMANDS
    }
    # They make the records, or a copy of them, and replace none that are there.
    assert bare == READS_ONLY | {"backup", "db upgrade", "restore"}


class TestDryRuns:
    def rows(self, finding: str, tmp_path: Path) -> list[list[str]]:
        path = tmp_path / "fleet.csv"
        path.write_text(f"name,host,sku,host_key\nnew,h,cpu-generic,{fleet.host_key('new')}\n")
        key = fleet.host_key("other")
        return [
            ["node", "add", "h9", "--sku", "cpu-generic", "--host-key", key],
            ["node", "import", str(path)],
            ["node", "adopt", "gpu-0002", *WHY],
            ["node", "lemon", "gpu-0002", *WHY],
            ["node", "adopt", "--file", str(path), *WHY],
            ["node", "verify", "gpu-0003", *WHY],
            ["waive", finding, "--until", DAY, *WHY],
            ["waivers", "revoke", "1", *WHY],
            ["qualify", NODE, "new", "--level", "short", "--force", "--force-reason", "nobody is on it"],
            ["node", "replace", NODE, "--host-key", fleet.host_key("third"), "--serial", "system=S-2", *WHY],
            ["node", "move", NODE, "quarantine", *WHY],
            ["housekeeping"],
            ["revalidate", "gpu-0003"],
            ["node", "pause", "gpu-0003", "--until", DAY, *WHY],
            ["node", "resume", "gpu-0003", *WHY],
            ["evidence", "close", "1", *WHY],
            ["block", "gpu-0005", "gpu-0006"],
            ["admit", "gpu-0005"],
            ["approve", "asks", "--option", "Approve", "--reason", "because"],
            ["mail", "resend", "a-mail", *WHY],
            ["mail", "drop", "a-mail", *WHY],
            ["db", "restored"],
        ]

    def test_nothing_changes_and_nothing_is_posted(
        self, muster: Muster, airflow: Airflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each command, first rehearsed, then done: only the second changes a row, or posts anything but a log-in."""
        monkeypatch.setenv("MUSTER_RETENTION_RUNS_DAYS", "1")
        monkeypatch.setenv("MUSTER_PERSON", "Ada")
        finding = failed()
        store.waivers.give(finding, datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=9), "Ada", "known")
        for name in ("gpu-0002", "gpu-0004"):
            store.nodes.add(fleet.new_node(name))
        store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node("gpu-0003"))])
        for name in ("gpu-0005", "gpu-0006"):
            store.nodes.add(fleet.new_node(name))
            fleet.qualify(name)
        store.repairs.open_incident("gpu-0006", Fault("gpu_memory", "gpu3"), "XID 95", ("intake",), "short")
        store.outbox.add("a-mail", b"x", datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1))
        airflow.override = asks
        lease = fleet.begin("gpu-0004", "forgotten")
        airflow.runs[lease.run_id] = "failed"
        for command in self.rows(finding, tmp_path):
            before, log = everything(), len(airflow.log)
            status, out, err = muster(*command, "--dry-run")
            assert (status, err) == (0, ""), command
            assert everything() == before, command
            assert [each for each in airflow.log[log:] if not each.startswith("GET")] in ([], ["POST /auth/token"])
            assert "dry run: nothing was" in out or "would delete" in out, command
            assert json.loads(muster(*command, "--dry-run", "--json")[1]), command
            assert everything() == before, command
            status, _, err = muster(*command)
            assert (status, err) == (0, ""), command
            assert everything() != before or len(airflow.runs) > 1, command
        assert list(airflow.runs) == [
            "forgotten", "gpu-0001__new-hardware", "new__new-hardware", "gpu-0003__by-hand", "gpu-0005+1__new-hardware",
            "gpu-0005__by-hand",
        ]  # fmt: skip
        assert any(each.startswith("PATCH") and "hitlDetails" in each for each in airflow.log)

    def test_a_refusal_is_rehearsed_too(self, muster: Muster, airflow: Airflow) -> None:
        failed()
        store.nodes.move(NODE, State.QUARANTINE, "Ada", "smoke")
        assert refusal(muster("node", "move", NODE, "production", *WHY, "--dry-run", "--json")) == "IllegalMove"
        assert refused(muster("qualify", NODE, "--dry-run", "--json")) == {NODE}
        store.nodes.add(fleet.new_node("gpu-0002"))
        fleet.begin("gpu-0002", "other")
        assert refused(muster("qualify", "gpu-0002", "--dry-run", "--json")) == {"gpu-0002"}
        store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node("gpu-0003"))])
        assert refused(muster("qualify", "gpu-0003", "--dry-run", "--json")) == {"gpu-0003"}
        assert airflow.log == []

    def test_the_plan_its_time_and_its_risks(self, muster: Muster, airflow: Airflow) -> None:
        store.nodes.add(fleet.new_node("gpu-0002"))
        store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node("gpu-0003"))])
        forced = ("--level", "short", "--force", "--force-reason", "mine", "--dry-run")
        shown = json.loads(muster("qualify", "gpu-0002", "gpu-0003", *forced, "--json")[1])
        (programme,) = shown["programmes"]
        assert (programme["sku"], programme["level"], programme["nodes"]) == (
            "cpu-generic", "short", ["gpu-0002", "gpu-0003"],
        )  # fmt: skip
        loads = {(stage["stage"], probe["probe"]): probe["loads"]
                 for stage in programme["stages"] for probe in stage["probes"]}  # fmt: skip
        assert not loads["intake", "inventory"]
        assert loads["burn_in", "cpu_burn"]
        usual, alone, in_service = programme["time"], *(len(shown["risks"][name]) for name in ("gpu-0002", "gpu-0003"))
        assert in_service == alone + 1, "it is in use"
        fleet.qualify("gpu-0002")
        again = muster("qualify", "gpu-0002", "--level", "short", "--reason", "new", "--dry-run", "--json")
        assert refused(again) == {"gpu-0002"}
        rehearsed = muster("qualify", "gpu-0002", "--level", "short", "--dry-run", "--json")
        assert json.loads(rehearsed[1])["programmes"][0]["time"] != usual, "as the latest such runs took"
