"""Reports of nodes in service: what the history and the planner make of them, and who sends them."""

from __future__ import annotations

import contextlib
import datetime
import http.server
import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

from muster import store
from muster.admission import idle_fleet
from muster.errors import MusterError
from muster.model.states import State
from muster.operators.lifecycle import arrival, reports
from tests.muster import fleet as nodes
from tests.support.servers import slurm

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
NODE = "gpu-0001"
XID = {"id": "x-1", "kind": "xid", "nodes": [NODE], "code": 79}


@pytest.fixture
def serving(fleet: Path) -> Path:
    store.adoption.adopt([], "Ada", "serves", enrol=[("", nodes.new_node(sku="h100-sxm-8"))])
    return fleet


def planned(node: str = NODE) -> tuple[str, int]:
    known = idle_fleet.known(store.nodes.find(), datetime.datetime.now(datetime.UTC))
    sign = known.signs.get(node)
    return (sign.requested, sign.xids) if sign else ("", 0)


def test_a_grave_xid_is_tested_next_and_a_repeated_report_counts_once(serving: Path) -> None:
    assert reports.receive([XID]) == [NODE]
    assert reports.receive([XID, {**XID, "from_rest_api": True}]) == []
    requested, xids = planned()
    assert "XID 79" in requested
    assert xids == 1
    assert store.nodes.get(NODE).state is State.PRODUCTION


def test_an_xid_of_the_users_program_is_a_sign_and_demands_no_test(serving: Path) -> None:
    reports.receive([{**XID, "code": 43}])
    assert planned() == ("", 1)


def test_a_report_before_the_last_whole_test_demands_none(serving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports.receive([{"id": "c", "kind": "job_crash", "nodes": [NODE], "job": "7", "user": "alice"}])
    assert "job 7 of alice" in planned()[0]
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    passed = {NODE: dict.fromkeys(idle_fleet.STAGES, later)}
    monkeypatch.setattr(store.verdicts, "stage_tests", lambda: passed)
    assert planned()[0] == ""
    reports.receive([{"id": "r", "kind": "returned", "nodes": [NODE]}])
    monkeypatch.setattr(store.verdicts, "stage_tests", lambda: {NODE: {"intake": later}})
    assert planned()[0]


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {**XID, "kind": "smoke"},
        {**XID, "code": None},
        {**XID, "kind": "job_crash"},
        {**XID, "nodes": []},
        {**XID, "nodes": ["gpu-9999"]},
        {**XID, "cluster": "alpha"},
        {**XID, "launch": {"kind": "python"}},
    ],
)
def test_a_report_that_cannot_be_used_is_one_sentence_and_costs_no_other(serving: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(MusterError):
        reports.receive([{**bad, "id": "bad"} if bad else bad, {**XID, "id": "good"}])
    assert [event.evidence["report"] for event in store.nodes.events(NODE) if event.actor == "report"] == ["good"]


def test_netbox_announces_a_staged_device_once(fleet: Path) -> None:
    """The payload is shaped as NetBox's documentation of webhooks shows it."""
    example = yaml.safe_load((EXAMPLES / "netbox_webhook.yaml").read_text())
    data = {
        "id": 17, "name": NODE, "status": {"value": "staged"}, "rack": {"name": "r12"},
        "primary_ip": {"address": "10.0.0.1/24"}, "custom_fields": {"muster_sku": "h100-sxm-8"},
    }  # fmt: skip
    made = jinja2.Template(example["webhook"]["body_template"]).render(event="updated", model="device", data=data)
    event = json.loads(made)
    event["extra"]["inventory"]["host_key"] = nodes.host_key(NODE)  # no host answers here
    started: list[str] = []
    for _ in range(2):
        with contextlib.suppress(arrival.AirflowSkipException):
            run = arrival.receive(event["partition_key"], [event["extra"]], started.__contains__)
            started.append(run["trigger_run_id"])
    assert started == ["gpu-0001__delivery-netbox-17"]
    assert (store.nodes.get(NODE).host, store.nodes.get(NODE).rack) == ("10.0.0.1", "r12")


@pytest.fixture
def airflow() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The three requests of Airflow's REST API (3.3) that the epilog makes, and the events that it created."""
    events: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def handle_one(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            allowed = self.headers.get("Authorization") == "Bearer t.o-k_n"
            found: Any = None
            if self.path == "/auth/token" and body == {"username": "slurm", "password": "pass word"}:
                found = {"access_token": "t.o-k_n"}
            elif self.path == "/api/v2/assets?name_pattern=muster_node_report" and allowed:
                found = {
                    "assets": [{"id": 12, "name": "muster_node_report", "group": ""}],
                    "total_entries": 1,
                }
            elif self.path == "/api/v2/assets/events" and allowed and body["asset_id"] == 12:
                events.append(body["extra"])
                found = {"id": 99}
            text = json.dumps(found).encode()
            self.send_response(200 if found else 403)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = handle_one

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", events
    server.shutdown()
    server.server_close()
    thread.join()


def epilog_settings(tmp_path: Path, url: str, *lines: str) -> Path:
    file = tmp_path / "muster_epilog.conf"
    file.write_text("\n".join([f"AIRFLOW={url}", "CLUSTER=alpha", "LOGIN=slurm", "PASSWORD='pass word'", *lines]))
    return file


def test_the_epilog_of_a_node_reports_its_xids(
    serving: Path, tmp_path: Path, airflow: tuple[str, list[dict[str, Any]]]
) -> None:
    url, events = airflow
    log = tmp_path / "dmesg"
    lines = [
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, lost",
        "NVRM: Xid (PCI:0000:3c:00): 48, DBE",
    ]
    log.write_text("\n".join([*lines, lines[0], "usb 1-1: new device"]))
    conf = epilog_settings(tmp_path, url, f"XIDS='cat {log}'")
    job = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7", "SLURM_JOB_USER": "alice", "MUSTER_EPILOG_CONF": str(conf)}
    subprocess.run([EXAMPLES / "slurm_epilog.sh", "wait"], env={**os.environ, **job}, check=True, timeout=60)
    assert [(each["code"], each["nodes"]) for each in events] == [(48, ["n1"]), (79, ["n1"])]
    for each in events:
        reports.Report.model_validate(each)


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_slurms_epilog_reports_a_crashed_job_and_no_other(
    serving: Path, tmp_path: Path, airflow: tuple[str, list[dict[str, Any]]]
) -> None:
    url, events = airflow
    script = tmp_path / "epilog.sh"
    text = (EXAMPLES / "slurm_epilog.sh").read_text()
    script.write_text(text.replace("/etc/slurm/muster_epilog.conf", str(tmp_path / "muster_epilog.conf")))
    script.chmod(0o700)  # before Slurm starts, which looks at it once
    with slurm.running(2, f"EpilogSlurmctld={script}\n") as cluster:
        epilog_settings(tmp_path, url, f"export SLURM_CONF={cluster.conf}")

        def submit(command: str, node: str = "n1") -> str:
            batch = ("sbatch", "--parsable", "-w", node, "-o", "/dev/null", "--wrap", command)
            return cluster.call(*batch).strip()

        for harmless in ("exit 0", "exit 3", "kill -TERM $$"):
            submit(harmless)
        cluster.call("scancel", submit("sleep 60", "n0"))
        job = submit("kill -SEGV $$")
        end_at = time.monotonic() + 150
        while not events and time.monotonic() < end_at:
            time.sleep(0.3)
        time.sleep(2)
    assert [(each["job"], each["nodes"]) for each in events] == [(job, ["n1"])]
    assert events[0]["user"]
