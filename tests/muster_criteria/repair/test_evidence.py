"""Profiles of evidence: those shipped can be used and ask for no right that the sudoers files do not give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster_criteria import policy_file
from muster_criteria.policy_file import BadPolicy
from muster_criteria.repair.evidence import Profile, load
from muster_criteria.sku_files.skus import SHIPPED

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
WRITTEN = """
profile: mine
version: "1"
title: Mine
sources: {here: {text: "chosen here", date: 2026-11-25}}
"""


def allowed(name: str, alias: str) -> set[str]:
    listed = (EXAMPLES / name).read_text().split(f"{alias} =")[1].split("\n\n")[0]
    commands = re.split(r",", listed.replace("\\\n", ""))
    return {" ".join(each.split()).removeprefix("/usr/bin/").replace("\\=", "=") for each in commands}


def test_root_is_asked_for_what_the_sudoers_files_allow_and_these_allow_no_more() -> None:
    steps = [step for profile in load([SHIPPED]) for step in profile.steps if step.root]
    wanted = {" ".join(("cat", step.file) if step.file else step.command) for step in steps}
    reads = allowed("muster.sudoers", "MUSTER_READS")
    assert wanted - reads == allowed("muster-repair.sudoers", "MUSTER_EVIDENCE")
    assert "*" not in (EXAMPLES / "muster-repair.sudoers").read_text()


def test_a_report_that_a_step_writes_is_taken_only_if_that_step_ended_well() -> None:
    steps = [step for profile in load([SHIPPED]) for step in profile.steps]
    written = {step.file: step.needs for step in steps if step.file.startswith("/root/")}
    assert written == {
        "/root/muster-nvidia-bug-report.log.gz": ("nvidia-bug-report.txt", "nvidia-bug-report-safe.txt"),
    }  # fmt: skip


def test_a_profile_applies_by_sku_and_label() -> None:
    def names(sku: str, **labels: str) -> list[str]:
        return [each.profile for each in load([SHIPPED]) if each.applies(sku, labels)]

    assert names("cpu-generic") == ["generic"]
    assert names("h100-sxm-8", vendor="dell") == ["dell", "generic", "nvidia"]
    assert names("mi300x-8", vendor="hpe") == ["generic", "hpe"]


def test_a_fleets_own_profile_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "evidence").mkdir()
    own = WRITTEN.replace("profile: mine", "profile: nvidia")
    (tmp_path / "evidence" / "nvidia.yaml").write_text(own)
    (found,) = [each for each in load([tmp_path, SHIPPED]) if each.profile == "nvidia"]
    assert found.steps == ()


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("steps: [{name: a}]", "steps.0"),
        ("steps: [{name: a, file: /x, command: [y]}]", "steps.0"),
        ("steps: [{name: a, file: /x}, {name: a, file: /y}]", "the file"),
        ("steps: [{name: a, file: /x, if_missing: b}]", "the file"),
        ("steps: [{name: a, file: /x, needs: [a]}]", "the file"),
        ("steps: [{name: a, file: /x, limit_s: 100000}]", "steps.0.limit_s"),
        ("steps: [{name: ../a, file: /x}]", "steps.0.name"),
        ("redfish: [http://elsewhere/]", "the file"),
        ("unknown: 1", "unknown"),
    ],
)
def test_a_profile_that_contradicts_itself_is_refused_with_the_place(lines: str, key: str) -> None:
    with pytest.raises(BadPolicy, match=rf"^evidence/mine\.yaml: {re.escape(key)}: "):
        policy_file.parse(Profile, (WRITTEN + lines).encode(), "evidence/mine.yaml")
