"""A machine that has some of a board's GPUs: they keep their names, and as many as the SKU counts are required."""

from __future__ import annotations

import pytest

from muster_criteria.stages import STAGES
from tests.muster_criteria.nodes import Case, MakeCase


def _on_part_of_a_board(case: MakeCase, stage: str, *slots: int) -> Case:
    """A machine of four GPUs, as its SKU counts them, of which these on a board of eight answer."""
    node = case(stage)
    node.sku = node.sku.model_copy(update={"devices": {**node.sku.devices, "gpu": 4}})
    names = {f"gpu{at}": f"gpu{slot}" for at, slot in enumerate(slots)}
    rows = node.raw["measurements"]
    for row in rows:
        row["device"] = names.get(row["device"], row["device"])
    gone = {f"gpu{slot}" for slot in range(8)} - set(names.values())
    node.raw["measurements"] = [row for row in rows if row["device"] not in gone]
    if stage == "intake":
        for slot in slots:
            node.add("inventory", "module_id", f"gpu{slot}", slot + 1.0, "count")
    return node


@pytest.mark.parametrize("stage", STAGES)
def test_gpus_of_a_part_of_a_board_are_those_that_the_sku_counts(case: MakeCase, stage: str) -> None:
    judgement = _on_part_of_a_board(case, stage, 1, 4, 5, 7).judge()
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
