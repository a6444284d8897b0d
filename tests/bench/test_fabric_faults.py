"""The fabric bench itself, as root: the longest test of all, so it has a file of its own.

Not the first one, though: next to the demo's start its relay, a process, loses frames, and a path looks dead.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.bench.fabric.__main__ import KINDS
from tests.bench.test_fabric import needs_namespaces


@pytest.mark.slow
@pytest.mark.early(5)
@pytest.mark.timeout(3600)
@pytest.mark.needs_iproute2
@needs_namespaces
def test_every_kind_of_fault_is_found_in_a_real_network_and_nothing_else() -> None:
    command = [sys.executable, "-m", "tests.bench.fabric", "--seed", "1", "--twos", "2"]
    done = subprocess.run(command, capture_output=True, text=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["found"], answer["wrongly_named"]) == (answer["planted"], 0), done.stdout
    assert answer["planted"] == len(KINDS) + 4
    assert done.returncode == 0
