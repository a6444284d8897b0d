"""A stand-in for the node side, for tests of how jobs are carried out: it does what its plan's ``behave`` says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

SOURCE = """
import gzip, hashlib, json, os, pathlib, signal, subprocess, sys, time
plan_path = pathlib.Path(sys.argv[2]); folder = plan_path.parent
plan = json.loads(plan_path.read_text())
with open(folder / "starts", "a") as starts: starts.write("%d\\n" % os.getpid())
def end(code, **more):
    telemetry = gzip.compress(b'{"t": 0}\\n')
    (folder / "telemetry.jsonl.gz").write_bytes(telemetry + plan.get("tamper", "").encode())
    body = {"job_id": plan["job_id"], "telemetry_file": {"file": "telemetry.jsonl.gz",
            "sha256": hashlib.sha256(telemetry).hexdigest()}, "work": os.environ.get("MUSTER_WORK"), **more}
    (folder / "result.tmp").write_text(json.dumps(body) + " " * plan.get("padding", 0))
    os.replace(folder / "result.tmp", folder / "result.json")
    sys.exit(code)
signal.signal(signal.SIGTERM, lambda *_: end(6, partial=True))
if plan.get("child"): subprocess.Popen(["sleep", "3600"])
print("\\x1b[2Jworking", flush=True)
time.sleep(plan.get("seconds", 0))
if plan.get("die"): os.kill(os.getppid(), signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)
end(plan.get("exit", 0))
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
