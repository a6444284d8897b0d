"""What the forms and the docs state about durations is what the programmes add up to."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.operators import forms
from muster.rules.preview import stage_plans
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stages import LEVELS
from muster_criteria.words import duration

QUICKSTART = Path(__file__).parents[3] / "docs" / "quickstart.md"


@pytest.mark.parametrize("level", LEVELS)
def test_the_stated_load_is_the_programmes(level: str) -> None:
    plans = (stage_plans(load_sku(sku, ()), level) for sku in ("cpu-generic", "h100-sxm-8"))
    cpu, gpu = (duration(sum(probe.timed_s for stage in plan for probe in stage.probes)) for plan in plans)
    assert forms.LOAD[level] == (cpu, gpu)
    assert f"**{level}** {cpu} and {gpu}" in forms.HOW_THOROUGHLY
    assert f"| `{level}` | {cpu} | {gpu} |" in QUICKSTART.read_text()
