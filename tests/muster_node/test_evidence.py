"""One piece of evidence on this machine: tools that hang, flood, fail or are absent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.support.waiting import until


def piece(*words: str, limit: float = 10.0, most: int = 1000, flags: tuple[str, ...] = ()) -> tuple[bytes, str]:
    args = ["evidence", f"--limit={limit}", f"--max={most}", *flags, "--", *words]
    done = subprocess.run([sys.executable, "-m", "muster_node", *args], capture_output=True, timeout=60, check=True)
    return done.stdout, json.loads(done.stderr.splitlines()[-1])["why"]


def test_output_and_errors_are_kept_and_a_status_is_told() -> None:
    assert piece("sh", "-c", "echo one; echo two >&2") == (b"one\ntwo\n", "")
    out, why = piece("sh", "-c", "echo one; exit 3")
    assert out == b"one\n"
    assert "status 3" in why


def test_what_a_tool_wrote_before_it_hung_is_kept_and_its_children_are_ended(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    began = time.monotonic()
    out, why = piece("sh", "-c", f"echo begun; trap '' TERM; sleep 600 & echo $! >{mark}; wait", limit=1.0)
    assert out == b"begun\n"
    assert why
    assert time.monotonic() - began < 60
    until(lambda: not Path(f"/proc/{mark.read_text().strip()}").exists())


def test_a_flood_is_cut(tmp_path: Path) -> None:
    out, why = piece("yes", most=100)
    assert out == b"y\n" * 50
    assert why


def test_what_is_absent_or_no_plain_file_is_one_sentence() -> None:
    assert piece("no-such-tool-anywhere")[0] == b""
    assert piece("no-such-tool-anywhere")[1]
    assert piece("/no/such/file", flags=("--file",))[1]
    assert piece("/dev/zero", flags=("--file",)) == (b"", "/dev/zero is not a plain file")
    out, why = piece("/proc/sys/kernel/random/boot_id", flags=("--file",))
    assert len(out.strip()) == 36
    assert why == ""
