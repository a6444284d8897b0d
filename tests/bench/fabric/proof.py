"""What the tests of the bench share: the bench as a command, which must find all that it plants and name nothing else.

Each part of it is a file of its own, since files are what processes share: in one file it is the longest test of all.
None is the first, though: next to the demo's start its relay, a process, loses frames, and a path looks dead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def namespaces() -> bool:
    """Whether this process may make network namespaces and shape their interfaces."""
    if os.geteuid() != 0:
        return False
    made, shaped = "ip link add name v0 type veth peer name v1", "tc qdisc add dev v0 root tbf rate 1mbit burst 32kb"
    script = f"{made} && {shaped} latency 50ms"
    return subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not namespaces(), reason="needs root and the right to make network namespaces")
MARKS = (pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.needs_iproute2, needs_namespaces)

PARTS = {"hosts": ("node+dies",), "links": ("nic+cable", "uplink+path+late")}
"""What is planted at once, by the test file that does: every kind, in as few rounds as show it. One that dies is silent
in later rounds, which none may be where a host is late."""


def assert_found(part: str) -> None:
    """Plant these, and assert that they are found, and nothing else is named."""
    command = [sys.executable, "-m", "tests.bench.fabric", "--seed", "1", "--twos", "0", "--kinds"]
    done = subprocess.run([*command, ",".join(PARTS[part])], capture_output=True, text=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["found"], answer["wrongly_named"]) == (answer["planted"], 0), done.stdout
    assert answer["planted"] == sum(len(group.split("+")) for group in PARTS[part])
    assert done.returncode == 0
