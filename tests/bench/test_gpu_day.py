"""The day at a GPU starts: its plans name parameters that exist, its parts fit, it needs no package of ours."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from muster_criteria.measured import parse_result
from muster_criteria.model import Verdict
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_node.agent import job, registry
from muster_node.contract import Plan
from muster_node.probe import resolve_params
from tests.bench.gpu_day import __main__ as day
from tests.bench.gpu_day import device, nodes
from tests.bench.gpu_day.pack import pack
from tests.bench.gpu_day.parts import ALL_S, COMMAND_S, PARTS
from tests.bench.gpu_day.report import of_this_machine, report
from tests.muster_criteria.nodes import healthy_raw, shipped

ROOT = Path(__file__).parents[2]


def test_the_parts_fit_into_the_day() -> None:
    assert sum(part.limit_s for part in PARTS) <= ALL_S
    assert max(part.limit_s for part in PARTS) <= COMMAND_S


@pytest.mark.parametrize("sku", ["h100-sxm-8", "h200-sxm-8"])
def test_every_plan_is_one_that_the_agent_runs(sku: str, tmp_path: Path) -> None:
    """Its timed work on one GPU fits into the part, too."""
    known = registry.discover().probes
    spent = dict.fromkeys((part.name for part in PARTS), 0.0)
    for path in pack(tmp_path / "packed", sku, rehearse=False):
        plan = Plan.from_json(path.read_text())
        job.check_plan(plan)
        for call in plan.probes:
            params = resolve_params(known[call.probe], call.params)
            # The members of a block work at the same time.
            whose = path.name.partition("-")[0] if path.parent.name == "plans" else "block"
            if path.parts[-3] != "two":
                spent[whose] += known[call.probe].timed_s(params, 1)
    for part in PARTS:
        assert spent[part.name] <= 0.8 * part.limit_s, part.name
    assert spent["rates"] > 0
    assert (tmp_path / "packed" / "muster.pyz").stat().st_size < 8_000_000


def test_what_the_scripts_for_a_device_import_exists() -> None:
    """Neither mypy nor a move of modules looks into a string."""
    named = re.findall(r"^from (muster_[\w.]+) import (\w+)", Path(device.__file__).read_text(), re.MULTILINE)
    assert named
    for module, name in named:
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")


def test_every_plan_of_two_nodes_is_one_that_the_agent_runs(tmp_path: Path) -> None:
    known = registry.discover().probes
    rails = "r0@10.{}.0.1/ib0/mlx5_0/0 r1@10.{}.1.1/ib1/mlx5_1/1"
    two = [f"gpu-{at} 10.9.0.{at} {rails.format(at, at)}" for at in (1, 2)]
    plans = nodes.pack(tmp_path / "packed", "h100-sxm-8", two, "standard", "/shared")
    asked = {}
    for path in plans:
        plan = Plan.from_json(path.read_text())
        job.check_plan(plan)
        (call,) = plan.probes
        asked[path.parts[-3:-1]] = resolve_params(known[call.probe], call.params)
    assert {name for name, _ in asked} == {"gpu-1", "gpu-2"}
    backends = {asked["gpu-1", f"rails-{backend}"]["backend"] for backend in nodes.BACKENDS}
    assert backends == {"nccl", "ib_write_bw"}
    assert {asked[name, "rails-nccl"]["role"] for name in ("gpu-1", "gpu-2")} == {"serve", "join"}
    assert [rail["device"] for rail in asked["gpu-2", "rails-nccl"]["rails"]] == ["mlx5_0", "mlx5_1"]
    assert (asked["gpu-1", "training"]["model"], asked["gpu-1", "training"]["layout"]) == ("8b", "fsdp")
    assert asked["gpu-1", "training"]["shared_path"] == "/shared"
    assert asked["gpu-1", "training-compiled"]["compile"] is True
    assert asked["gpu-1", "domain"]["grow"] is True
    assert len(nodes.report(tmp_path / "packed")["missing"]) == len(plans)  # type: ignore[arg-type]


def test_the_machine_needs_no_package_but_pytorch() -> None:
    modules = "tests.bench.gpu_day.device, tests.bench.gpu_day.__main__, tests.bench.integrity"
    code = f"import sys; sys.path[:0] = ['.', 'validators']; import {modules}"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_a_part_that_did_not_run_falls_short(tmp_path: Path) -> None:
    pack(tmp_path / "packed", "h200-sxm-8", rehearse=False)
    assert len(report(tmp_path / "packed", tmp_path / "nothing")["short"]) == len(PARTS)


def test_a_single_gpu_out_of_any_slot_is_judged_as_a_machine_of_one() -> None:
    result = parse_result(json.dumps(one_gpu("gpu5")).encode())
    sku = of_this_machine(result, shipped("h100-sxm-8"))
    judgement = judge(Case(sku, result.stage, result.level, result))
    assert (judgement.verdict, judgement.findings) == (Verdict.PASS, ())


def one_gpu(device: str) -> dict[str, object]:
    """A healthy intake with all but one GPU gone."""
    raw = healthy_raw(shipped("h100-sxm-8"), "intake")
    kept = [row for row in raw["measurements"] if not row["device"].startswith("gpu") or row["device"] == device]
    return {**raw, "measurements": kept}


@pytest.mark.slow
@pytest.mark.early(8)
@pytest.mark.needs_torch
def test_the_rehearsal_runs_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_day", "--rehearse"])
    assert day.main() == 0
