"""No text of a node's answer to the sweep steers a terminal, or begins a line of a log."""

from __future__ import annotations

import pytest

from tests.muster_criteria.health.test_readings import counters_of, fact, shown, swept

SAID = "a\x1b[2J\n[INFO] n2"


@pytest.mark.parametrize("name", ["device", "part", "pci", "text"])
def test_of_a_message_of_the_kernel(name: str) -> None:
    answer = swept(kernel={"events": [{"kind": "xid", "code": 79, "last": 900, name: SAID}]})
    (found,) = (each for each in shown(answer)[0].values() if each.check.startswith("xid"))
    assert f"{found.device}{found.value}".isprintable()


def test_of_a_counters_label_and_the_boot() -> None:
    before, after = (fact("ib_errors", "nic0", value, labels={"counter": SAID}) for value in (0, 5))
    answer = swept(after)
    (found,) = shown(answer, counters_of(before))[0].values()
    assert (found.check.isprintable(), found.count) == (True, 5)
    assert swept(boot_id=SAID).boot_id.isprintable()
