"""A machine that has some of a board's GPUs: they keep their names, and as many as the SKU counts are required."""

from __future__ import annotations

import pytest

from muster_criteria.model import Lack, Verdict
from muster_criteria.stages import STAGES
from tests.muster_criteria.nodes import Case, MakeCase


def _on_part_of_a_board(case: MakeCase, stage: str, *slots: int, counted: int | str = 4) -> Case:
    """A machine of four GPUs, as its SKU or its inventory counts them, of which these on a board of eight answer."""
    node = case(stage)
    node.sku = node.sku.model_copy(update={"devices": {**node.sku.devices, "gpu": counted}})
    names = {f"gpu{at}": f"gpu{slot}" for at, slot in enumerate(slots)}
    rows = node.raw["measurements"]
    for row in rows:
        row["device"] = names.get(row["device"], row["device"])
    gone = {f"gpu{slot}" for slot in range(8)} - set(names.values())
    node.raw["measurements"] = [row for row in rows if row["device"] not in gone]
    if counted == "inventory":
        node.raw["measurements"] = [row for row in node.raw["measurements"] if row["metric"] != "gpu_count"]
        node.add("inventory", "gpu_count", "node", 4.0, "count")
    if stage == "intake":
        for slot in slots:
            node.add("inventory", "module_id", f"gpu{slot}", slot + 1.0, "count")
    return node


@pytest.mark.parametrize("counted", [4, "inventory"])
@pytest.mark.parametrize("stage", STAGES)
def test_gpus_of_a_part_of_a_board_are_those_that_are_counted(case: MakeCase, stage: str, counted: int | str) -> None:
    judgement = _on_part_of_a_board(case, stage, 1, 4, 5, 7, counted=counted).judge()
    assert (judgement.findings, judgement.coverage.missing) == ((), ())
    assert {each.device for each in judgement.observations if each.device.startswith("gpu")} == {
        "gpu1", "gpu4", "gpu5", "gpu7"
    }  # fmt: skip


def test_of_a_part_of_a_board_no_slot_is_named_for_the_gpu_that_is_gone(case: MakeCase) -> None:
    (found,) = _on_part_of_a_board(case, "intake", 4, 6, 7).judge().findings
    assert (found.code, found.device) == ("expected_devices.missing", "node")
    assert len(found.measurements) == 1


def test_one_gpu_too_many_of_a_part_of_a_board_is_the_only_extra_one(case: MakeCase) -> None:
    found = _on_part_of_a_board(case, "intake", 3, 4, 5, 6, 7).judge().findings
    assert [(each.code, each.device) for each in found] == [("expected_devices.extra", "gpu7")]


@pytest.mark.parametrize(("counted", "judged"), [(1, 0), ("inventory", 0), (4, 2)])
def test_where_an_only_gpu_sits_is_asked_where_the_sku_counts_others(
    case: MakeCase, counted: int | str, judged: int
) -> None:
    """A card of its own with module id 4, or the last that answers of a board."""
    node = _on_part_of_a_board(case, "intake", 0, counted=counted)
    for row in node.raw["measurements"]:
        row["value"] = 1.0 if row["metric"] == "gpu_count" else row["value"]
    node.raw["measurements"] = [
        row for row in node.raw["measurements"] if row["metric"] not in ("module_id", "slot_known")
    ]
    node.add("inventory", "slot_known", "gpu0", 0.0, "bool", note="the board gives it no place")
    found = node.judge().findings
    assert len(found) == judged, found
    assert all(each.device == "node" for each in found if each.rule == "expected_devices")


def test_of_gpus_that_the_inventory_counts_one_that_does_not_answer_is_missed(case: MakeCase) -> None:
    judgement = _on_part_of_a_board(case, "intake", 1, 4, 5, counted="inventory").judge()
    assert (judgement.verdict, judgement.findings) == (Verdict.INCONCLUSIVE, ())
    assert Lack.JUDGE_FAILED not in {gap.code for gap in judgement.coverage.missing}
