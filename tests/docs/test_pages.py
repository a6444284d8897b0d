"""README and docs stay true: files named there exist, commands shown there parse."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from airflow.cli.cli_parser import get_parser

from muster.cli.app import root
from muster.settings import settings

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "dags|plugins|validators|reports|tests|docs"
PATH = re.compile(rf"(?<![\w/.:-])((?:{FOLDERS})/[\w./*-]*[\w*/])")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^ *```[^\n]*\n(.*?)^ *```", re.M | re.S)
INLINE = re.compile(r"`(muster [^`\n]+)`")
SETTING = re.compile(r"^(?:export )?MUSTER_\w+=[^\n]*(?:\n [^\n]*)*", re.M)
COMMANDS = root()

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def commands(text: str, program: str = "muster") -> Iterator[str]:
    """Every command line of ``program`` in code blocks, and Muster's own in backticks too."""
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if line.strip().startswith(f"{program} "):
                yield line.strip().partition(" # ")[0]
    if program == "muster":
        yield from INLINE.findall(FENCE.sub("", text))


@page
def test_every_file_named_exists(page: Path) -> None:
    text = page.read_text()
    named = {ROOT / path for path in PATH.findall(text)} | {page.parent / path for path in LINK.findall(text)}
    absent = [path for path in sorted(named) if not any(path.parent.glob(path.name))]
    assert absent == []


@page
def test_every_command_shown_parses(page: Path) -> None:
    for line in commands(page.read_text()):
        words = shlex.split(line)[1:]
        command = COMMANDS
        while words and isinstance(command, typer.core.TyperGroup) and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert not isinstance(command, typer.core.TyperGroup) or not words or words[0].isupper(), line
        options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        options |= {"--help"}
        given = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert set(given) <= options, line
        needed = [param for param in command.params if param.required and param.param_type_name == "option"]
        assert not given or all({*param.opts} & set(given) for param in needed), line


@page
def test_a_fleet_is_judged_by_something_else_than_now(page: Path) -> None:
    """Without a proposal `muster judge --fleet` is refused."""
    shown = [line for line in commands(page.read_text()) if line.startswith("muster judge ") and "--fleet" in line]
    assert [line for line in shown if not re.search("--skus|--as-of", line)] == []


@page
def test_airflow_knows_each_of_its_commands_shown(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in commands(page.read_text(), "airflow"):
        try:
            get_parser().parse_args(shlex.split(line)[1:])
        except SystemExit:
            pytest.fail(f"{line}: {capsys.readouterr().err}")


@page
def test_bash_takes_the_settings_as_shown(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "\n".join(line for block in FENCE.findall(page.read_text()) for line in SETTING.findall(block))
    script = ["bash", "-ec", f"set -a\n{shown}\nenv -0"]
    done = subprocess.run(script, env={"PATH": os.defpath}, capture_output=True, text=True, check=True)
    taken = dict(each.split("=", 1) for each in done.stdout.split("\0") if each.startswith("MUSTER_"))
    assert bool(shown) == bool(taken)
    for name, value in taken.items():
        monkeypatch.setenv(name, value)
    settings()


@page
def test_a_variable_that_a_block_uses_is_set_on_its_page(page: Path) -> None:
    text = page.read_text()
    shown = "\n".join(FENCE.findall(text))
    set_here = shown + "\n".join((ROOT / file).read_text() for file in re.findall(r"\bdocs/\S+\.env\b", shown))
    used = set(re.findall(r"(?<!\\)\$\{?([A-Z][A-Z_]+)\b", shown)) - {"HOME", "PWD"}
    assert {name for name in used if not re.search(rf"(?:^|[ (]){name}=", set_here, re.M)} == set()


def test_the_example_for_slurm_changes_no_partition_of_users() -> None:
    lines = (ROOT / "docs" / "examples" / "slurm_idle_tests.conf").read_text().splitlines()
    named = [line.partition(" ")[0] for line in lines if line and not line.startswith("#")]
    assert named == ["PreemptType=preempt/partition_prio", "PreemptMode=CANCEL", "PartitionName=muster"]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_glossary_is_short() -> None:
    glossary = (ROOT / "docs" / "verdicts.md").read_text().partition("## Glossary")[2]
    assert 1 < len(re.findall(r"^\| (?!term|-)", glossary, re.M)) <= 40


def test_the_way_of_one_measurement_names_each_file_once() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    way = text.split("## The way of one measurement\n")[1].split("\n## ")[0]
    named = PATH.findall(way)
    assert sorted(named) == sorted(set(named))
    assert all(name.endswith(".py") for name in named)
