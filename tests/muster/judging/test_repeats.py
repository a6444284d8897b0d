"""Which results of a run are of the same test: not those that were measured with other parameters."""

from __future__ import annotations

import dataclasses
import json

import pytest

from muster import store
from muster.judging import repeats
from muster.judging.case import Collected, fresh_case
from muster.model.runs import Run
from muster_criteria.measured import parse_result
from muster_criteria.model import Coverage, Gap, Judgement, Lack, Verdict
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.sku_files.work import sku_work
from tests.muster import fleet
from tests.muster_criteria.nodes import healthy_raw

pytestmark = pytest.mark.usefixtures("sqlite_db")

SKU, STAGE, LEVEL, NODE = "h100-sxm-8", "performance", "demo", "n0"


def after_a_whole_result(sku: Sku, code: Lack) -> Run:
    """A run whose first result allowed no decision, for that reason."""
    store.nodes.add(fleet.new_node(NODE, sku=SKU))
    key = fleet.begin(NODE, "again").key
    raw = json.dumps(healthy_raw(sku, STAGE, LEVEL) | {"node": NODE, "job_id": "first"}).encode()
    coverage = Coverage(1, 0, 0, (Gap(code, "so it is"),))
    judgement = Judgement(STAGE, LEVEL, Verdict.INCONCLUSIVE, "", coverage, (), (), False, SKU, sku.revision)
    fleet.record(key, parse_result(raw), judgement, raw)
    return dataclasses.replace(store.runs.get(key), level=LEVEL)


@pytest.mark.parametrize(
    ("code", "changed", "same"),
    [
        (Lack.UNDECIDED, "", ["first"]),
        (Lack.UNDECIDED, "intake/inventory", ["first"]),
        (Lack.UNDECIDED, "performance/gemm_rate", []),
        (Lack.REPLANNED, "", []),
    ],
)
def test_only_what_was_measured_with_the_same_parameters_is_of_the_same_test(
    code: Lack, changed: str, same: list[str]
) -> None:
    sku = load_sku(SKU)
    run, work = after_a_whole_result(sku, code), sku_work(sku, LEVEL)
    assert not changed or changed in work
    work |= {changed: "another"} if changed else {}
    now = parse_result(json.dumps(healthy_raw(sku, STAGE, LEVEL) | {"node": NODE, "job_id": "second"}).encode())
    _, others = repeats.arranged(run, sku, work, now)
    assert [each.job_id for each in others] == same


@pytest.mark.parametrize(("code", "alone"), [(Lack.UNDECIDED, False), (Lack.REPLANNED, True)])
def test_a_repeat_of_what_other_parameters_measured_passes_nothing(code: Lack, alone: bool) -> None:
    sku = load_sku(SKU)
    run = after_a_whole_result(sku, code)
    raw = healthy_raw(sku, STAGE, LEVEL) | {"node": NODE, "job_id": "second", "repeat": True}
    collected = Collected(parse_result(json.dumps(raw).encode()))
    assert bool(fresh_case(run, store.nodes.get(NODE), sku, STAGE, collected).replanned) is alone
