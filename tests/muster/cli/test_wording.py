"""The words of the command line: help of every command, what `muster doctor` finds, and the usual refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import typer
from syrupy.assertion import SnapshotAssertion

from muster import store
from muster.cli.app import root
from muster.cli.controller.settings import shown
from muster.cli.doctor import doctor
from muster.integration.airflow_api import Pool
from muster.model import dags
from muster.settings import Settings
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]


def helps(command: object, name: str) -> Iterator[tuple[str, str]]:
    """Each command and option with its help."""
    assert isinstance(command, typer.core.TyperCommand | typer.core.TyperGroup)
    yield name, command.help or ""
    for param in command.params:
        yield f"{name} {'/'.join(param.opts)}", getattr(param, "help", "") or ""
    if isinstance(command, typer.core.TyperGroup):
        for word, below in command.commands.items():
            yield from helps(below, f"{name} {word}")


def test_wording_of_help(snapshot: SnapshotAssertion) -> None:
    lines = dict(helps(root(), "muster"))
    assert "\n".join(f"{name}: {text}" for name, text in lines.items()) == snapshot
    assert [name for name, text in lines.items() if not text] == []


def test_wording_of_settings(snapshot: SnapshotAssertion) -> None:
    assert {name: text for name, _, text in shown(Settings())} == snapshot


def test_wording_of_doctor(snapshot: SnapshotAssertion, sqlite_db: str) -> None:
    every = dict.fromkeys(dags.ALL, False)
    checks = [
        doctor.dags({}),
        doctor.dags(every | {"housekeeping": True}),
        doctor.dags(every | {"new_hardware": True}),
        doctor.dags(every),
        doctor.pools({}, Settings()),
        doctor.pools({"muster_burn": Pool(16, 0, False)}, Settings()),
        doctor.pools({"muster_burn": Pool(1, 0, True)}, Settings()),
        doctor.mail(Settings()),
    ]
    assert [(each.item, each.message, each.fix) for each in checks] == snapshot


@pytest.mark.usefixtures("sqlite_db")
def test_wording_of_refusals(muster: Muster, snapshot: SnapshotAssertion) -> None:
    key = fleet.host_key("a")
    store.nodes.add(fleet.new_node("a"))
    refused = [
        ["node", "show", "b"],
        ["node", "add", "h", "--sku", "cpu-generi"],
        ["node", "add", "h", "--sku", "cpu-generic", "--name", "a__b"],
        ["node", "add", "h", "--sku", "cpu-generic", "--host-key", "nonsense"],
        ["node", "add", "h", "--sku", "cpu-generic", "--launch", "{"],
        ["node", "add", "h", "--sku", "cpu-generic", "--label", "x"],
        ["node", "add", "h", "--sku", "cpu-generic", "--name", "a", "--host-key", fleet.host_key("other")],
        ["node", "move", "a", "quarantine", "--reason", " ", "--as", "Ada"],
        ["node", "move", "a", "quarantine", "--reason", "smoke", "--as", "root"],
        ["node", "move", "a", "production", "--reason", "needed", "--as", "Ada"],
        ["node", "adopt", "--reason", "serves", "--as", "Ada"],
        ["node", "keep", "a", "--reason", "why", "--as", "Ada"],
        ["node", "replace", "a", "--host-key", key, "--serial", "x", "--reason", "RMA", "--as", "Ada"],
        ["waive", "f-0", "--until", "soon", "--reason", "why", "--as", "Ada"],
        ["waive", "f-0", "--until", "2030-01-01", "--reason", "why", "--as", "Ada"],
        ["runs", "show", "none"],
        ["qualify", "a", "--level", "all"],
        ["qualify", "a", "--force"],
        ["sku", "show", "cpu-generi"],
        ["sku", "lint", "./none.yaml"],
        ["device-events", "show", "nvidia-xid", "9999"],
    ]
    answers = {" ".join(word for word in words if " " not in word): muster(*words) for words in refused}
    assert {line: err for line, (_, _, err) in answers.items()} == snapshot
    assert {status for status, _, _ in answers.values()} == {1}
    assert all(out == "" for _, out, _ in answers.values())
    (node,) = store.nodes.find()
    assert (node.name, node.state) == ("a", "registered")


def test_wording_of_an_empty_fleet(muster: Muster, snapshot: SnapshotAssertion, sqlite_db: str) -> None:
    commands = (
        ["status"],
        ["node", "list"],
        ["runs", "list"],
        ["waivers", "list"],
        ["golden", "list"],
        ["snapshots", "list"],
    )
    assert {" ".join(words): muster(*words)[1] for words in commands} == snapshot
