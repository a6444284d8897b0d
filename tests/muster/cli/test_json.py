"""With ``--json`` stdout of every command is one JSON document, for an error too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperArgument, TyperOption

from muster.cli.app import app
from tests.muster import fleet

Muster = Callable[..., tuple[int, str, str]]
USAGE = 2


def commands(command: object = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    command = command or typer.main.get_command(app)
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, each in below.items():
        yield from commands(each, (*path, name))


COMMANDS = dict(commands())


def required(command: object) -> Iterator[str]:
    """Every required argument and option of a command, with a value that no record knows."""
    for each in getattr(command, "params"):  # noqa: B009 - click's commands have no common type with typer's
        if isinstance(each, TyperArgument) and each.required:
            yield "unknown"
        elif isinstance(each, TyperOption) and each.required:
            yield from (each.opts[0], "unknown")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_stdout_is_one_json_document(
    muster: Muster, sqlite_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_AIRFLOW_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("MUSTER_PERSON", "Ada")
    status, out, err = muster(*path, *required(COMMANDS[path]), "--json")
    if status == USAGE:  # an argument is no number, day or file
        assert "No such option" not in err
        return
    assert json.loads(out) is not None


def test_sentences_become_messages(muster: Muster, sqlite_db: str) -> None:
    status, out, _ = muster(
        "node", "add", "gpu-0009", "--sku", "cpu-generic", "--host-key", fleet.host_key("x"), "--json"
    )
    assert (status, json.loads(out)) == (0, {"messages": ["gpu-0009: added"]})
