"""Whether a machine is in use, as a controller asks before it repairs one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster_node import commands
from muster_node.hardware.seam import Usage


class Machine:
    def __init__(self, answer: Usage | Exception) -> None:
        self.answer = answer

    def usage(self) -> Usage:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


IDLE = Usage(users=("ada",), load_1min=0.1, cpu_count=8)
USED = Usage(gpu_processes=("python3 (4711) on gpu0",))


UNKNOWN = Usage(unknown=("the compute processes of gpu3 cannot be listed (NVML: Unknown Error)",))


@pytest.mark.parametrize(("answer", "busy"), [(IDLE, False), (USED, True), (UNKNOWN, True), (OSError("NVML"), True)])
def test_what_cannot_be_read_is_in_use(
    answer: Any, busy: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands.guard, "PAUSE_S", 0.0)
    assert commands.carry_out(["usage"], [], lambda: Machine(answer), []) == 0  # type: ignore[arg-type, return-value]
    said = json.loads(capsys.readouterr().out)
    assert said["busy"] is busy
    assert said["sentence"].startswith("it is not known") is (answer is UNKNOWN or isinstance(answer, OSError))


def test_daemons_that_poll_by_design_are_no_use(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(Usage(busy_processes=("wekanode (process 42) uses 99 % of a core",)))
    assert commands.carry_out(["usage", "spdk", "wekanode"], [], lambda: machine, []) == 0  # type: ignore[arg-type, return-value]
    assert json.loads(capsys.readouterr().out)["busy"] is False


def test_a_machine_that_cannot_be_opened_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Any:
        raise OSError("no driver")

    assert commands.carry_out(["usage"], [], broken, []) == 0
    assert json.loads(capsys.readouterr().out)["busy"] is True
