"""However a demo ends, it leaves nothing behind; and the next one ends what one that was killed has left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest

from muster_demo import watchdog
from muster_demo.workdir import Busy, Workdir
from tests.muster_demo.started import Demo, alive

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch, pytest.mark.early(4)]

MANY = 12
"""Processes that a demo has once Airflow's components are up or on their way."""


def test_ctrl_c_in_the_middle_leaves_no_process_behind(start: Callable[..., Demo]) -> None:
    demo = start("--seed", "1")
    demo.wait_for("intake: ")
    everyone = demo.family()
    assert len(everyone) > MANY
    os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.process.wait(300) == 130, demo.printed()
    assert alive(everyone) == []
    assert watchdog.marked(str(demo.directory)) == []


def test_the_next_demo_ends_what_a_killed_one_left(start: Callable[..., Demo]) -> None:
    demo = start("--seed", "1")
    demo.wait_until(lambda: len(demo.family()) > MANY)
    place = Workdir(demo.directory)
    with pytest.raises(Busy, match="A demo is running"):
        place.claim()
    proper = psutil.Process(int((demo.directory / "lock").read_text()))
    everyone = demo.family()
    assert proper in everyone
    # The watchdog is stopped first, so that it cannot clean up after the demo proper.
    demo.process.send_signal(signal.SIGSTOP)
    proper.kill()
    demo.process.kill()
    demo.process.wait(60)
    with place.claim():
        assert alive(everyone) == []
        assert not place.answers.exists()
