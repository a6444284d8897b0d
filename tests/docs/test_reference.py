"""docs/reference is what the code declares now, and each page holds what it is for."""

from __future__ import annotations

import re

import pytest

from muster.settings import Settings
from muster_criteria.stage.rules import KINDS
from tests.docs.reference import FOLDER, PAGES, cli, metrics, probes, settings

HEADING = re.compile(r"^## (.+)$", re.M)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_current(name: str) -> None:
    """`make reference` writes it."""
    assert (FOLDER / name).read_text() == PAGES[name]()


def test_no_page_is_left_of_what_is_gone() -> None:
    assert {path.name for path in FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_each_link_within_a_page_leads_to_a_heading(name: str) -> None:
    text = (FOLDER / name).read_text()
    anchors = {heading.lower().replace(" ", "-") for heading in HEADING.findall(text)}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors


def test_each_page_holds_all_of_its_kind() -> None:
    text = {name: (FOLDER / name).read_text() for name in PAGES}
    assert all(f"| `MUSTER_{name.upper()}` |" in text["settings.md"] for name in Settings.model_fields)
    assert all(f"| `{kind}` |" in text["rules.md"] for kind in KINDS)
    assert all(f"| `{name}` |" in text["metrics.md"] for name, _labels, _text in metrics.families())
    assert {probe["name"] for probe in probes.declarations()} == set(HEADING.findall(text["probes.md"]))
    assert "## muster node move\n" in text["commands.md"]


def test_each_setting_is_in_one_group_and_each_number_has_a_unit() -> None:
    grouped = [name for group in settings.GROUPS for name in group.model_fields]
    assert sorted(grouped) == sorted(Settings.model_fields)
    numbers = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]
    assert [name for name in numbers if not settings.unit(name)] == []


def test_each_command_and_option_is_explained() -> None:
    root = cli.root()
    silent = [
        f"{name} {param.name}"
        for name, command in cli.commands(root)
        for param in command.params
        if not (command.help and (param.help or param.name == "help"))
    ]
    assert silent == []
