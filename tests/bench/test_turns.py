"""Turns of two programs: each does the steps that it is given, and none while the other trains."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.turns import Side, in_turns

STEP_BYTES, LATE = 4096, 6
PROGRAM = f"""
import os, sys, time
out = os.open(os.devnull, os.O_WRONLY)
log = os.open(sys.argv[1], os.O_WRONLY)
sys.stdin.read()
while True:
    time.sleep(0.1)
    for part in range(8):  # as gloo sends a step's gradients, in parts
        time.sleep(0.01)
        os.writev(out, [bytes({STEP_BYTES // 8})])
    os.write(log, b".")
"""


class Program:
    """A process that takes steps, and a file that has a character for each."""

    def __init__(self, log: Path) -> None:
        log.touch()
        self.log = log
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(log)], stdin=subprocess.PIPE)

    def side(self, limit_s: float = 60.0) -> Side:
        side = Side([self.process.pid], STEP_BYTES, limit_s)
        assert self.process.stdin is not None
        self.process.stdin.close()
        return side

    @property
    def steps(self) -> int:
        return len(self.log.read_text())


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[list[Program]]:
    started = [Program(tmp_path / name) for name in ("one", "other")]
    yield started
    for each in started:
        each.process.kill()
        each.process.wait()


def test_both_do_the_steps_that_they_are_given_and_none_in_the_others_turn(programs: list[Program]) -> None:
    one, other = programs
    sides = one.side(), other.side()
    for side in sides:
        side.turn(1)
    before = other.steps
    sides[0].turn(5)
    assert other.steps == before
    assert len(in_turns(*sides, 3, 4)) == 4
    # Where this process comes late, a program goes beyond a turn's end, which its next turn makes up for.
    for program, steps in ((one, 1 + 5 + 12), (other, 1 + 12)):
        assert steps - 1 <= program.steps < steps + LATE


def test_steps_that_do_not_come_end_the_turn(programs: list[Program]) -> None:
    side = programs[0].side(limit_s=0.5)
    with pytest.raises(TimeoutError):
        side.turn(1_000_000)
