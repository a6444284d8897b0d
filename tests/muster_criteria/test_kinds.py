"""Kinds of limits: each is whole, and a new one is one new file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import muster_criteria
from muster_criteria.kinds import LIMIT_KINDS
from muster_criteria.kinds.kind import LimitKind
from muster_criteria.sku_files.limits import Limit
from muster_criteria.stage.rules import KINDS, RULES

ROOM = Path(muster_criteria.__file__).parent


@pytest.mark.parametrize(("unit", "codes"), [("%", []), ("GB/s", ["wrong-unit"])])
def test_a_spread_is_a_share_whatever_the_measurements_unit(unit: str, codes: list[str]) -> None:
    limit = Limit.model_validate({
        "metric": "memory_bandwidth", "device": "gpu", "unit": unit, "spread_at_most": 5, "source": "for a test",
        "date": "2026-11-25",
    })  # fmt: skip
    assert [code for code, _ in limit.kind.problems(limit)] == codes


NEW = '''
"""``within_percent``: a measurement within so many percent of 100."""
import numpy as np
from muster_criteria.kinds.kind import LimitKind

class WithinPercent(LimitKind):
    def margin(self, limit, at, seen):
        return at - np.abs(seen.value - 100.0)

    def problems(self, limit):
        if limit.value > 50:
            yield "too-wide", "more than half of everything is within it"

    def expected(self, limit, at, row):
        return f"100 to within {at:g} %"

KIND = WithinPercent(key="within_percent", claim="What is near a hundred is near enough")
'''

USE = """
import datetime, json
from muster_criteria.kinds import LIMIT_KINDS
from muster_criteria.rows import Row
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.lint import problems_of
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.findings import findings_of
from muster_criteria.stage.frame import build_frame
from muster_criteria.stage.prefilter import small_margins
from muster_criteria.fleet.series.readings import readings_of

def limit(wide):
    return Limit.model_validate({"metric": "gemm_peak_share", "device": "gpu", "unit": "%", "within_percent": wide,
                                 "source": "for a test", "date": "2026-11-25"})

sku = load_sku("h100-sxm-8").model_copy(update={"inventory": (), "limits": (limit(60),), "figures": ()})
lint = [problem.code for problem in problems_of(sku)]
sku = sku.model_copy(update={"limits": (limit(5),)})
values = enumerate((99, 90, 104))
rows = [Row("gemm_rate", "gemm_peak_share", f"gpu{n}", (), "%", value, None, 1, None, "") for n, value in values]
frame = build_frame(rows, sku, "performance")
rules = [rule for rule in frame.applicable() if rule.kind == "within_percent"]
broken = {rule.column: [at for at, margin in enumerate(frame[rule.column]) if margin < 0] for rule in rules}
found = findings_of(frame, rules, broken, sku)
readings = readings_of(rows, node="n", at=0.0, run="r", sku=sku.name, environment={})
print(json.dumps({
    "lint": lint, "claim": rules[0].claim, "found": [(each.finding.device, each.finding.rule) for each in found],
    "expected": [each.finding.expected for each in found],
    "named": sorted(small_margins(readings, sku, "performance", "demo")),
}))
"""


def test_a_new_kind_is_one_new_file(tmp_path: Path) -> None:
    """Its key in SKU files, its lint, its rule, its wording and its place in the prefilter all come from that file."""
    shutil.copytree(ROOM, tmp_path / "muster_criteria", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "skus").symlink_to(ROOM.parent / "skus")
    (tmp_path / "muster_criteria" / "kinds" / "within_percent.py").write_text(NEW)

    done = subprocess.run(
        [sys.executable, "-c", USE], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "lint": ["too-wide"],
        "claim": "What is near a hundred is near enough",
        "found": [["gpu1", "within_percent"]],
        "expected": ["100 to within 5 %"],
        "named": ["n"],
    }


@pytest.mark.parametrize("kind", LIMIT_KINDS.values(), ids=LIMIT_KINDS)
def test_each_kind_is_one_rule_under_its_own_name(kind: LimitKind) -> None:
    assert (ROOM / "kinds" / f"{kind.key}.py").is_file()
    assert KINDS[kind.rule] == kind.claim
    assert {rule.breach for rule in RULES if rule.kind == kind.rule} == {"fail", "warn", "invalid"}


def test_the_names_of_a_limit_s_own_fields_are_no_keys() -> None:
    written = {"metric": "m", "device": "gpu", "unit": "W", "source": "for a test", "date": "2026-11-25", "floor": 1}
    assert Limit.model_validate(written).key == "floor"
    for more in ({"key": "ceiling"}, {"value": 3}):
        with pytest.raises(ValueError, match=next(iter(more))):
            Limit.model_validate(written | more)
