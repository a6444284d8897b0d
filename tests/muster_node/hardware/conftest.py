"""A recorded machine: a tree of files as in /proc and /sys."""

import pytest

from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import Clock


class StepClock(Clock):
    """A clock that moves only when a test moves it."""

    def __init__(self):
        self.time = 100.0

    def now(self):
        return self.time

    def wall(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


@pytest.fixture
def clock():
    return StepClock()


@pytest.fixture
def tree(tmp_path):
    """``tree({path: text})`` writes the files and returns Files on them; call again to change some."""

    def write(contents):
        for path, text in contents.items():
            full = tmp_path / path.lstrip("/")
            full.parent.mkdir(parents=True, exist_ok=True)
            full.write_text(str(text) + "\n", encoding="utf-8")
        return Files(tmp_path)

    return write
