"""The command line as a person runs it: arguments in, exit status and both streams out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from muster.cli import main


def refusal(ended: tuple[int, str, str]) -> str:
    """The kind of the error with which a command ended that was called with --json."""
    status, out, _ = ended
    return str(json.loads(out)["kind"]) if status else "none"


def refused(ended: tuple[int, str, str]) -> set[str]:
    """The nodes that a command refused that was called with --json."""
    return set(json.loads(ended[1])["refused"])


@pytest.fixture
def muster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Call ``muster`` with arguments: (exit status, stdout, stderr)."""

    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["muster", *args])
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return call
