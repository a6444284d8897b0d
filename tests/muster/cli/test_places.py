"""A reader finds a command's file by its name."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from muster.cli.app import app


def commands(group: typer.Typer, first: str = "") -> Iterator[tuple[str, str]]:
    """(first word, module) of each command."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield (first or command.name or command.callback.__name__).replace("-", "_"), command.callback.__module__
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, first or str(inner.name))


def test_a_command_lies_in_the_module_or_folder_of_its_first_word() -> None:
    found = set(commands(app))
    assert len({first for first, _ in found}) > 20
    elsewhere = {(first, module) for first, module in found if first not in module.split(".")[2:]}
    assert elsewhere == set()
