"""A stand-in for the node side, for tests of how jobs are carried out: it behaves as configured and measures nothing.

The configuration is its plan (tests of jobs), or ``~/behave.json`` on the node, {stage: {…}} (tests of whole DAG runs):
``measured`` there lists what it claims to have measured at its first start in that stage, at its second, and so on.
``~/usage`` is its answer to whether the machine is in use; without that file it is not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

SOURCE = """
import gzip, hashlib, json, os, pathlib, signal, subprocess, sys, time
if sys.argv[1] == "usage":
    said = pathlib.Path.home() / "usage"
    print(said.read_text() if said.exists() else json.dumps({"busy": False, "sentence": "this machine is not in use"}))
    sys.exit()
plan_path = pathlib.Path(sys.argv[2]); folder = plan_path.parent
plan = json.loads(plan_path.read_text())
settings = pathlib.Path.home() / "behave.json"
do = json.loads(settings.read_text()).get(plan.get("stage"), {}) if settings.exists() else plan
began = time.time()
measured, ends = [], []
if "measured" in do:
    starts = pathlib.Path.home() / "starts"
    before = starts.read_text().split() if starts.exists() else []
    measured = do["measured"][min(before.count(plan["stage"]), len(do["measured"]) - 1)]
    ends = [{"probe": call["probe"], "status": "completed", "reason": "", "started_at": began, "duration_s": 0.0}
            for call in plan["probes"]]
for diary in (folder / "starts", pathlib.Path.home() / "starts"):
    with open(diary, "a") as lines: lines.write("%d %s\\n" % (os.getpid(), plan.get("stage")))
def end(code, how="completed"):
    telemetry = gzip.compress(b'{"t": 0}\\n')
    (folder / "telemetry.jsonl.gz").write_bytes(telemetry + do.get("tamper", "").encode())
    side = {"file": "telemetry.jsonl.gz", "sha256": hashlib.sha256(telemetry).hexdigest(), "rows": 1, "bytes": 9}
    agent = pathlib.Path(sys.argv[0]).stem
    body = {"schema": "muster.result/1", "job_id": plan["job_id"], "node": plan.get("node"), "stage": plan.get("stage"),
            "level": plan.get("level"), "fence": plan.get("fence"), "agent_sha256": agent, "simulated": False,
            "started_at": began, "ended_at": time.time(), "end": do.get("end", how), "partial": how != "completed",
            "identity": {"boot_id": "b"}, "environment": {"work": os.environ.get("MUSTER_WORK", "")},
            "guard": {"busy": False, "evidence": []}, "measurements": measured,
            "telemetry_file": side, "probes": ends, "notes": [do["note"]] if "note" in do else [],
            "repeat": plan.get("repeat", False)}
    (folder / "result.tmp").write_text(json.dumps(body) + " " * do.get("padding", 0))
    os.replace(folder / "result.tmp", folder / "result.json")
    sys.exit(code)
signal.signal(signal.SIGTERM, lambda *_: end(6, "terminated"))
if do.get("child"): subprocess.Popen(["sleep", "3600"])
print("\\x1b[2Jworking", flush=True)
print(("x" * 99 + "\\n") * do.get("lines", 0), end="", flush=True)
while time.time() < began + do.get("seconds", 0): time.sleep(0.05)  # a signal just before a long sleep would wait
if do.get("reboot"): pathlib.Path(os.environ["MUSTER_BOOT_ID_FILE"]).write_text("another boot\\n")
if do.get("die") or do.get("reboot"):
    os.kill(os.getppid(), signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)
end(do.get("exit", 0))
"""


def write(folder: Path) -> tuple[Path, str]:
    """The stand-in as an agent file: (path, sha256)."""
    data = SOURCE.encode()
    digest = hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest}.pyz"
    path.write_bytes(data)
    return path, digest


def plan(key: str, **behave: object) -> str:
    """A plan that only the stand-in understands."""
    return json.dumps({"job_id": key, **behave})


def behave(home: Path, **stages: object) -> None:
    """Configure the behaviour of the stand-ins on a node, by stage."""
    (home / "behave.json").write_text(json.dumps(stages))


def started(home: Path) -> list[str]:
    """The stages of all stand-ins that were ever started on a node, in order."""
    diary = home / "starts"
    return [line.split()[1] for line in diary.read_text().splitlines()] if diary.exists() else []
