"""What the day found: a table of the figures beside their bars, and the verdict on each stage that ran there."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from muster_criteria.devices import kind_of
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_criteria.stages import STAGES
from tests.bench.gpu_day.parts import PARTS, Part, part_of
from tests.bench.integrity import BARS, MEMORY_BARS

Figure = list[Any]


def report(packed: Path, came_back: Path) -> dict[str, Any]:
    """Print the tables; returns the answer: figures, what falls short, and verdicts by stage."""
    day = json.loads((packed / "day.json").read_text())
    figures: dict[str, float] = {}
    short: list[str] = []
    for part in PARTS:
        file = came_back / f"{part.name}.json"
        if not file.exists():
            short.append(f"part {part.name} was not run")
            continue
        summary = json.loads(file.read_text())
        limit_s = part_of(part.name, rehearse=day["rehearse"]).limit_s
        print(f"\n{part.name}: {part.what}; {summary['seconds']:.0f} of {limit_s:.0f} s")
        for name, value, note in summary["figures"]:
            print(f"  {name:<64} {'-' if value is None else format(value, '12.5g')}  {note[:80]}")
            figures |= {name: value} if value is not None else {}
        for sentence in summary["trouble"]:
            print(f"  ! {sentence}")
        short += [*summary["trouble"], *([] if day["rehearse"] else _below(part, summary["figures"]))]
    verdicts = _verdicts(came_back, load_sku(day["sku"]))
    for stage, verdict in verdicts.items():
        print(f"{stage:<12} {verdict}")
    for sentence in short:
        print(f"! {sentence}")
    return {"figures": figures, "short": short, "verdicts": verdicts, "rehearsed": day["rehearse"]}


def _below(part: Part, figures: list[Figure]) -> list[str]:
    """A sentence for each figure of the part that is below its bar, or missing."""
    bars = [(f"{metric}{''.join(f' {k}={v}' for k, v in labels.items())} ", bar) for metric, labels, bar in part.bars]
    if part.name == "integrity":
        bars += [(f"verified_to_raw {dtype}", bar) for dtype, bar in BARS.items()]
        bars += [(f"memory {metric}", bar) for metric, bar in MEMORY_BARS.items()]
    found = []
    for start, bar in bars:
        values = [value for name, value, _ in figures if name.startswith(start)]
        if not values or any(value is None or value < bar for value in values):
            found.append(f"{start.strip()} is {values or 'not measured'}, its bar is {bar:g}")
    return found


def _verdicts(came_back: Path, sku: Sku) -> dict[str, str]:
    """The verdict and reason of each stage whose result came back."""
    archive = came_back / "stages.tar.gz"
    if not archive.exists():
        return {}
    found = {}
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            file = packed.extractfile(member) if member.name.endswith("/result.json") else None
            if file is None:
                continue
            result = parse_result(file.read())
            judgement = judge(Case(of_this_machine(result, sku), result.stage, result.level, result))
            found[judgement.stage] = f"{judgement.verdict}: {judgement.reason}"
    return {stage: found[stage] for stage in STAGES if stage in found}


def of_this_machine(result: StageResult, sku: Sku) -> Sku:
    """The SKU as of a machine with as many GPUs as the result has: one is lent of a board of eight."""
    given = {each.device for each in result.measurements if kind_of(each.device) == "gpu"}
    if not given or not isinstance(sku.devices.get("gpu"), int):
        return sku
    return sku.model_copy(update={"devices": {**sku.devices, "gpu": len(given)}})
