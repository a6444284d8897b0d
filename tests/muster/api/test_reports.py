"""Reports from outside: who may send them, what is made of them, and how much one source may send."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient
from sqlalchemy import event

from muster import store
from muster.admission import idle_fleet
from muster.api import reports
from muster.integration import report_sources
from muster.model.states import State
from muster.store.database.outgoing import PlaceRow
from muster_criteria.health.policy import HealthAction
from muster_demo.services import free_port
from tests.muster.api.conftest import NODE, XID, post, sources
from tests.support.servers import slurm
from tests.support.waiting import until

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"


def requested(node: str = NODE) -> str:
    known = idle_fleet.known(store.nodes.find(), datetime.datetime.now(datetime.UTC))
    sign = known.signs.get(node)
    return sign.requested if sign else ""


def test_only_a_token_opens_it_and_it_opens_nothing_else(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("", "Bearer", "Bearer ", "Bearer epilo", "Basic epilog", "epilog", "Bearer épilog"):
        answer = client.post("/v1/reports", json=XID, headers={"Authorization": wrong.encode()})
        assert answer.status_code == 401, wrong
    assert store.health.of_node(NODE) == []
    token = {"Authorization": "Bearer epilog"}
    other = TestClient(client.app, raise_server_exceptions=False)  # these ask Airflow, which does not run here
    for path in ("/v1/nodes", f"/v1/nodes/{NODE}", "/metrics", "/v1/openapi.json"):
        assert other.get(path, headers=token).status_code in (401, 403, 500, 503), path
    assert client.get("/v1/reports", headers=token).status_code == 405
    for broken in ("{}", '{"a": {"sha256": "short"}}', '{"a": {"token": "t0p-secret"}}', "no json"):
        monkeypatch.setenv("MUSTER_REPORT_SOURCES", broken)
        answer = post(client, XID)
        assert answer.status_code == 503, broken
        assert "t0p-secret" not in answer.text


@pytest.mark.parametrize(
    ("wrong", "closed"),
    [
        ({"alerts": {"sha256": "1" * 64, "most": "test-sooner"}}, ()),
        ({"alerts": {"token": "t0p-secret"}}, ()),
        ({"slow": {"sha256": hashlib.sha256(b"alerts").hexdigest()}}, ("alerts",)),
        ({"sweep": {"sha256": hashlib.sha256(b"sweep").hexdigest()}}, ("sweep",)),
        ({"bmc": {"sha256": hashlib.sha256(b"bmc").hexdigest()}}, ("bmc",)),
    ],
)
def test_an_entry_that_cannot_be_used_closes_no_other(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], closed: tuple[str, ...]
) -> None:
    """Two with one token are both closed. A name of the controller's own would write into what it read itself."""
    monkeypatch.setenv("MUSTER_REPORT_SOURCES", json.dumps({**json.loads(sources()), **wrong}))
    assert post(client, XID).status_code == 200
    assert [post(client, XID, token).status_code for token in closed] == [503] * len(closed)
    answer = post(client, XID, "unknown")
    assert (answer.status_code, "t0p-secret" in answer.text) == (503, False)
    found, problems = report_sources.sources()
    assert (len(problems), found.keys() & {*wrong, *closed}) == (1, set())


def test_a_grave_xid_is_tested_next_and_changes_no_state(client: TestClient) -> None:
    assert post(client, XID).json() == {"accepted": 1, "nodes": 1, "refused": []}
    assert post(client, {"reports": [XID, XID]}).status_code == 200
    assert "xid/79" in requested()
    (seen,) = store.health.of_node(NODE)
    assert (seen.count, seen.source, seen.severity, seen.action) == (3, "epilog", "REBOOT", HealthAction.TEST_SOONER)
    assert store.nodes.get(NODE).state is State.PRODUCTION
    assert sum(event.actor == "health" for event in store.nodes.events(NODE)) == 1


def test_suspects_that_nobody_could_tell_apart_are_all_tested_next(client: TestClient) -> None:
    pair = {"check": "unisolated", "nodes": [NODE, "gpu-0002"], "value": "job 4711 hung"}
    assert post(client, pair).json()["nodes"] == 2
    for node, other in ((NODE, "gpu-0002"), ("gpu-0002", NODE)):
        assert other in requested(node)
        assert "job 4711 hung" in requested(node)
        assert store.nodes.get(node).state is State.PRODUCTION
    for few_or_many in ([NODE], [NODE, NODE], [f"gpu-{at:04}" for at in range(9)]):
        assert post(client, {**pair, "nodes": few_or_many}).status_code == 422, few_or_many


def test_an_xid_of_the_users_program_demands_no_test(client: TestClient) -> None:
    post(client, {**XID, "check": "xid/43"})
    assert requested() == ""


def test_a_report_before_the_last_whole_test_demands_none(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    post(client, {"node": NODE, "check": "job_crash", "value": "job 7 of alice"})
    assert "job 7 of alice" in requested()
    passed = {NODE: dict.fromkeys(idle_fleet.STAGES, 1_000_000)}
    monkeypatch.setattr(store.verdicts, "stage_numbers", lambda: passed)
    assert requested() == ""


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"node": NODE},
        {"check": "xid/79"},
        {**XID, "check": "Xid 79; rm"},
        {**XID, "count": 0},
        {**XID, "node": "gpu-9999"},
        {**XID, "severity": "HUGE"},
        {**XID, "action": "at_once"},
        {**XID, "value": "x" * 1001},
        7,
        None,
    ],
)
def test_a_report_that_cannot_be_used_is_one_sentence_and_costs_no_other(client: TestClient, bad: Any) -> None:
    answer = post(client, {"reports": [bad, XID]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["accepted"] == 1
    assert len(answer.json()["refused"]) == 1
    assert post(client, {"reports": [bad]}).status_code == 422


def test_bodies_and_rates_are_bounded(client: TestClient) -> None:
    head = {"Authorization": "Bearer epilog"}
    assert client.post("/v1/reports", content=b"{" * 10, headers=head).status_code == 400
    assert client.post("/v1/reports", content=b"[" * 200_000, headers=head).status_code == 400
    huge = b'"' + b"x" * reports.BODY_MAX + b'"'
    assert client.post("/v1/reports", content=huge, headers=head).status_code == 413
    alerts = {"Authorization": "Bearer alerts"}
    assert client.post("/v1/reports", content=huge, headers=alerts).status_code == 422, "as much as a group of alerts"
    huge = b'"' + b"x" * reports.ALERTS_BODY_MAX + b'"'
    assert client.post("/v1/reports", content=huge, headers=alerts).status_code == 413
    answers = [post(client, XID, "slow").status_code for _ in range(7)]
    assert answers[:5] == [200] * 5
    assert answers[5:] == [429] * 2
    assert int(post(client, XID, "slow").headers["Retry-After"]) > 0
    assert post(client, XID).status_code == 200, "the rate is each source's own"


def test_reports_that_cannot_be_used_count_as_any_other(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports.time, "monotonic", lambda: 1000.0)
    read: list[Any] = []
    plain = reports.report_forms.read

    def counted(*given: Any) -> Iterator[Any]:
        for each in plain(*given):
            read.append(each)
            yield each

    monkeypatch.setattr(reports.report_forms, "read", counted)
    assert post(client, [0] * 6000, "slow").status_code == 413
    assert len(read) == reports.REPORTS_MAX + 1
    assert post(client, XID, "slow").status_code == 429
    assert post(client, [0] * 598, "epilog").status_code == 422
    assert [post(client, XID).status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize("before", [0, 3])
def test_a_body_of_more_than_a_minutes_worth_is_accepted_once_the_source_waited_as_told(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    moment = 1000.0
    monkeypatch.setattr(reports.time, "monotonic", lambda: moment)
    body = {"reports": [XID] * 6}
    assert [post(client, XID, "slow").status_code for _ in range(before)] == [200] * before
    answer = post(client, body, "slow")
    if before:
        assert answer.status_code == 429
        moment += int(answer.headers["Retry-After"])
        answer = post(client, body, "slow")
    assert answer.status_code == 200
    assert post(client, XID, "slow").status_code == 429


def test_a_boot_that_a_source_names_is_one_line(client: TestClient) -> None:
    assert post(client, {**XID, "boot_id": "b\x1b[2J\n\x00c"}).json()["accepted"] == 1
    assert [each.boot_id.isprintable() for each in store.health.of_node(NODE)] == [True]


def test_a_storm_is_one_observation(client: TestClient) -> None:
    body = {"reports": [XID] * 600}
    assert post(client, body).status_code == 200
    assert [each.count for each in store.health.of_node(NODE)] == [600]


def test_a_source_reports_its_own_nodes_alone_and_causes_no_more_than_it_may(client: TestClient) -> None:
    assert post(client, XID, "one").status_code == 422
    assert post(client, {**XID, "node": "gpu-0002"}, "one").status_code == 200
    wrong = {"node": NODE, "check": "corrupted_results", "value": "rank 3 differs"}
    post(client, wrong)
    assert store.health.of_node(NODE)[0].action is HealthAction.TEST_SOONER
    post(client, wrong, "trusted")
    assert store.health.of_node(NODE)[0].action is HealthAction.AT_ONCE
    assert store.nodes.get(NODE).state is State.PRODUCTION, "a report moves no node: the sweep does"


def test_names_of_a_cluster_are_its_schedulers(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": {"kind": "slurm"}}))
    monkeypatch.setenv("MUSTER_REPORT_SOURCES", sources(epilog={"cluster": "alpha"}))
    store.schedulers.assign(NODE, "alpha", "n1", "Ada", "rack 1")
    assert post(client, {**XID, "node": "n1"}).json()["nodes"] == 1
    assert post(client, XID).status_code == 422
    assert store.health.of_node(NODE)[0].count == 1
    assert post(client, {"reports": [XID, {**XID, "node": "n\x00"}, {**XID, "node": "n1"}]}).json()["accepted"] == 1


def test_no_place_is_read_of_a_node_that_is_not_reported(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": {"kind": "slurm"}}))
    monkeypatch.setenv("MUSTER_REPORT_SOURCES", sources(epilog={"cluster": "alpha"}))
    for node, name in ((NODE, "n1"), ("gpu-0002", "n2")):
        store.schedulers.assign(node, "alpha", name, "Ada", "rack 1")
    read: list[str] = []

    def note(place: PlaceRow, _context: object) -> None:
        read.append(place.node)

    event.listen(PlaceRow, "load", note)
    try:
        assert post(client, {**XID, "node": "n1"}).json()["nodes"] == 1
    finally:
        event.remove(PlaceRow, "load", note)
    assert "gpu-0002" not in read


def test_what_a_body_holds_that_is_refused_is_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    body = {"reports": [XID, {**XID, "node": "gpu-9999"}]}
    assert post(client, body).json()["accepted"] == 1
    (record,) = (each for each in caplog.records if each.name == reports.__name__)
    assert isinstance(record.args, tuple)
    assert record.args[:2] == (1, "epilog")


@pytest.fixture
def served(client: TestClient) -> Iterator[str]:
    """The app behind a real HTTP server."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(client.app, "127.0.0.1", port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def epilog_settings(tmp_path: Path, url: str, *lines: str) -> Path:
    file = tmp_path / "muster_epilog.conf"
    file.write_text("\n".join([f"MUSTER={url}", "TOKEN=epilog", *lines]))
    return file


def test_the_epilog_of_a_node_reports_its_xids_with_a_token_that_can_only_report(tmp_path: Path, served: str) -> None:
    log = tmp_path / "dmesg"
    needed = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    link = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"
    lines = [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, lost", 'NVRM: Xid (PCI:0000:3c:00): 48, DBE "said"\t\\twice',
        "NVRM: Xid (PCI:0000:3a:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        f"NVRM: Xid (PCI:0000:3c:00): 154, {needed}",
        f"NVRM: Xid (PCI:0018:01:00): 149, {link}{'.' * 500}", "NVRM: Xid (PCI:0018:01:00): 8",
        "[ 1843.308145] kernel: NVRM: Xid (PCI:0000:3b:00): 95, Uncontained",  # journalctl -o short-monotonic
        "[ 1844.1] NVRM: Xid (PCI:0000:3b:00): 63, one",
        "Nov  9 07:08:01 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 64, two",
        "[Mon Nov  9 07:08:01 2026] NVRM: Xid (PCI:0000:3b:00): 74, three",
    ]  # fmt: skip
    forged = "NVRM: Xid (PCI:0000:3b:00): 62, chosen by a user"
    log.write_text("\n".join([
        *lines, lines[0], "usb 1-1: new device", f"tmpfs: Unknown parameter '{forged}'",
        "[    9.500000] kernel: tmpfs: Unknown parameter '", f"{' ' * 24}{forged}'",
        f"[    9.500000] kernel: tmpfs: Unknown parameter '[    9.500000] kernel: {forged}'",
    ]))  # fmt: skip
    conf = epilog_settings(tmp_path, served, f"XIDS='cat {log}'")
    job = {"SLURMD_NODENAME": NODE, "SLURM_JOB_ID": "7", "SLURM_JOB_USER": "alice", "MUSTER_EPILOG_CONF": str(conf)}
    subprocess.run([EXAMPLES / "slurm_epilog.sh", "wait"], env={**os.environ, **job}, check=True, timeout=60)
    after = "(after job 7 of alice)"
    assert {(each.check, each.value, each.severity) for each in store.health.of_node(NODE)} == {
        ("xid/48", f"DBE said twice {after}", "RESET"), ("xid/79", f"pid=1, lost {after}", "REBOOT"),
        ("xid/154", f"{needed} {after}", "RESET"), ("xid/149", f"{(link + '.' * 500)[:300]} {after}", "RESET"),
        ("xid/8", after, "MONITOR"), ("xid/95", f"Uncontained {after}", "RESET"),
        *((f"xid/{code}", f"{text} {after}", severity) for code, text, severity in (
            ("63", "one", "IGNORE"), ("64", "two", "RESET"), ("74", "three", "RESET"))),
    }  # fmt: skip


def test_violations_of_dcgms_policies_are_reported_and_nothing_else_that_it_prints(
    tmp_path: Path, served: str, client: TestClient
) -> None:
    (tmp_path / "printed").write_text(
        "Listening for violations.\nTimestamp: Thu Nov 26 20:00:00 2026\nXID error 13 detected.\n"
        "NVLink Counter 409 has violated policy manager values.\nNVLink Counter value: 7\n"
        "A double-bit ECC error has violated policy manager values.\nDBE error count: 1\n"
    )
    conf = tmp_path / "conf"
    conf.write_text(f"MUSTER={served}\nTOKEN=epilog\nNODE={NODE}\nVIOLATIONS='cat {tmp_path / 'printed'}'\n")
    script = [EXAMPLES / "dcgm_policy.sh"]
    subprocess.run(script, env={**os.environ, "MUSTER_DCGM_CONF": str(conf)}, check=True, timeout=60)
    assert {each.check for each in store.health.of_node(NODE)} == {
        "xid/13", "event/dcgm/nvlink", "event/dcgm/double_bit_ecc",
    }  # fmt: skip
    assert "event/dcgm/" in requested()


@pytest.mark.parametrize(
    ("code", "crashed"),
    [(0, False), (2, False), (9, False), (15, False), (1 << 8, False), (138 << 8, False), (255 << 8, False),
     (11, True), (11 | 0x80, True), (134 << 8, True), (139 << 8, True)],
)  # fmt: skip
def test_the_epilog_reports_jobs_that_faulty_hardware_may_have_ended(tmp_path: Path, code: int, crashed: bool) -> None:
    """Any status above 128 may be a program's own; 138 is SIGUSR1, at which jobs write checkpoints."""
    end_a_job(tmp_path, code)
    assert (tmp_path / "curl").exists() is crashed
    assert not (tmp_path / "logger").exists()


@pytest.mark.parametrize("fails", ["scontrol", "mktemp", "curl"])
def test_a_report_that_the_epilog_cannot_make_is_logged(tmp_path: Path, fails: str) -> None:
    """Slurm may be installed where its PATH does not lead, /tmp full, and Muster away or another's token."""
    end_a_job(tmp_path, 11, **{fails: "exit 22"})
    assert [name for name in ("curl", "logger") if (tmp_path / name).exists()] == ["logger"]


def end_a_job(tmp_path: Path, code: int, **scripts: str) -> None:
    """Run the epilog of a job; ``curl`` and ``logger`` write files of their names, unless ``scripts`` replaces them."""
    programs = tmp_path / "bin"
    programs.mkdir()
    writes = {name: f'echo "$*" >>{tmp_path}/{name}' for name in ("curl", "logger")}
    for name, script in {"scontrol": "echo n1", **writes, **scripts}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    conf = epilog_settings(tmp_path, "http://muster", f"PATH={programs}:$PATH")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_USER": "alice", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_EXIT_CODE": str(code)}
    environment = {name: value for name, value in os.environ.items() if name != "SLURMD_NODENAME"}
    environment |= job | {"MUSTER_EPILOG_CONF": str(conf)}
    subprocess.run([EXAMPLES / "slurm_epilog.sh", "wait"], env=environment, check=True, timeout=60)


@pytest.mark.parametrize("script", ["slurm_epilog.sh", "dcgm_policy.sh"])
def test_no_example_holds_a_login_of_airflow_on_a_node(script: str) -> None:
    text = (EXAMPLES / script).read_text()
    assert not any(word in text for word in ("/auth/token", "PASSWORD", "LOGIN", "/api/v2"))


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_slurms_epilog_reports_a_crashed_job_and_no_other(
    tmp_path: Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": {"kind": "slurm"}}))
    monkeypatch.setenv("MUSTER_REPORT_SOURCES", sources(epilog={"cluster": "alpha"}))
    store.schedulers.assign(NODE, "alpha", "n1", "Ada", "rack 1")
    store.schedulers.assign("gpu-0002", "alpha", "n0", "Ada", "rack 1")
    script = tmp_path / "epilog.sh"
    text = (EXAMPLES / "slurm_epilog.sh").read_text()
    script.write_text(text.replace("/etc/slurm/muster_epilog.conf", str(tmp_path / "muster_epilog.conf")))
    script.chmod(0o700)  # before Slurm starts, which looks at it once
    with slurm.running(2, f"EpilogSlurmctld={script}\n") as cluster:
        epilog_settings(tmp_path, served, f"export SLURM_CONF={cluster.conf}")

        def submit(command: str, node: str = "n1") -> str:
            batch = ("sbatch", "--parsable", "-w", node, "-o", "/dev/null", "--wrap", command)
            return cluster.call(*batch).strip()

        for harmless in ("exit 0", "exit 3", "kill -TERM $$"):
            submit(harmless)
        cluster.call("scancel", submit("sleep 60", "n0"))
        job = submit("kill -SEGV $$")
        until(lambda: store.health.of_node(NODE))
        time.sleep(2)
    (seen,) = store.health.of_node(NODE)
    assert seen.check == "job_crash"
    assert f"job {job} of " in seen.value
    assert store.health.of_node("gpu-0002") == []
