"""Runs a command of the agent of which one thread cannot die, as one in state D cannot; prints how it ends, as JSON.

That thread is held in its exit by ptrace, by a process of its own, since what a process traces goes on when it ends.
Arguments: a folder, the signal that kills the agent at work (0: none), the command.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

PTRACE_SEIZE, PTRACE_O_TRACEEXIT = 0x4206, 0x40  # linux/ptrace.h


def content(path):
    """The content of a file that another process writes."""
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)
    return path.read_text()


def main(folder, number, command):
    thread = folder / "thread"
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        env={**os.environ, "MUSTER_WORK": str(folder / "work"), "FAKE_OPEN": "stuck", "FAKE_THREAD": str(thread)},
    )
    tid = int(content(thread))
    libc = ctypes.CDLL(None)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(PTRACE_SEIZE, tid, None, PTRACE_O_TRACEEXIT):
        process.kill()
        return None
    thread.with_suffix(".held").touch()
    if number:
        while "hanging" not in content(folder / "progress.jsonl"):
            time.sleep(0.01)
        os.kill(int(content(folder / "agent.pid")), number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    rc, left = process.poll(), Path(f"/proc/{tid}").exists()
    process.kill()
    os.set_blocking(process.stdout.fileno(), False)
    try:
        # The first read takes what is left; at the end of output the second one is empty.
        ended = process.stdout.read() is not None and process.stdout.read() == b""
    except BlockingIOError:
        ended = False
    return {"rc": rc, "end_of_output": ended, "thread_left": left}


print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])), flush=True)
os._exit(0)
