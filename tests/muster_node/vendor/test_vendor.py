"""A second vendor of GPUs is a folder, a family file and an event policy: nothing else is edited, and it is judged."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import muster_node
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import DEVICE_EVENT, Action, Finding, Judgement, Severity, Verdict
from muster_criteria.sku_files import declarations
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import stage_calls
from muster_criteria.sku_files.skus import lint_sku, load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_node.contract import Plan, ProbeCall

HERE = Path(__file__).parent
BOOT = "[    0.000000] Linux version 6.8.0\n[   10.0] acme 0000:1b:00.0: fault 9: a job's kernel divided by zero"
STOPPED = "[   20.0] acme 0000:1b:00.0: fault 7: core stopped"
Run = Callable[[str], StageResult]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The node side with the vendor's folder in it, as it would lie in a checkout."""
    root = tmp_path_factory.mktemp("acme")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(muster_node.__file__).parent, root / "muster_node", ignore=ignored)
    shutil.copytree(HERE / "acme", root / "muster_node" / "hardware" / "acme", ignore=ignored)
    shutil.copy(HERE / "machine.py", root / "acme_machine.py")
    return root


def started(tree: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster_node", *args],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree), **env}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.fixture
def sku(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sku]:
    """The vendor's SKU, after ``make declarations`` of the node side with its folder."""
    declared = json.loads(started(tree, "probes", "--json").stdout)
    assert declared["broken"] == {}
    file = tmp_path / "probes.json"
    file.write_text(json.dumps(declarations.condensed(declared["probes"])))
    monkeypatch.setattr(declarations, "FILE", file)
    declarations.declared_probes.cache_clear()
    assert lint_sku("acme-gpu-2", [HERE / "skus"]) == []
    yield load_sku("acme-gpu-2", [HERE / "skus"])
    declarations.declared_probes.cache_clear()


@pytest.fixture
def intake(tree: Path, sku: Sku, tmp_path: Path) -> Callable[[str], Judgement]:
    """intake(log) is the verdict on the stage of a machine with this kernel log."""

    def run(log: str) -> Judgement:
        calls = tuple(ProbeCall(**dataclasses.asdict(call)) for call in stage_calls(sku, "intake", "demo", 1))
        plan = Plan("j1", "n1", "intake", "demo", 1, 300.0, calls)
        (tmp_path / "plan.json").write_text(plan.to_json())
        env = {"MUSTER_HARDWARE": "acme_machine:open_machine", "MUSTER_WORK": str(tmp_path / "work"), "ACME_LOG": log}
        done = started(tree, "run", str(tmp_path / "plan.json"), **env)
        assert done.returncode == 0, done.stderr
        return judge(Case(sku, "intake", "demo", parse_result((tmp_path / "result.json").read_bytes())))

    return run


def of_gpus(judgement: Judgement) -> list[Finding]:
    return [each for each in judgement.findings if each.device.startswith("gpu")]


def test_a_sound_machine_of_another_vendor_has_everything_that_intake_requires(
    intake: Callable[[str], Judgement],
) -> None:
    judged = intake(BOOT)
    assert [gap for gap in judged.coverage.missing if gap.device.startswith("gpu")] == []
    assert of_gpus(judged) == []
    assert judged.verdict is not Verdict.FAIL, judged.reason


def test_its_drivers_errors_are_judged_by_its_policy(intake: Callable[[str], Judgement]) -> None:
    (found,) = of_gpus(intake(f"{BOOT}\n{STOPPED}"))
    assert (found.rule, found.device, found.action, found.severity) == (
        DEVICE_EVENT, "gpu1", Action.RESET, Severity.WARNING
    )  # fmt: skip
    assert dict(found.labels)["kind"] == "acme"


def test_the_check_names_the_vendor(tree: Path) -> None:
    machine = {"MUSTER_HARDWARE": "acme_machine:open_machine", "ACME_LOG": BOOT}
    items = json.loads(started(tree, "check", "--json", **machine).stdout)
    assert next(each for each in items if each["item"] == "gpu")["ok"]
