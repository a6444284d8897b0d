"""What a node may report to mislead the judge or the fleet: impossible and phantom devices."""

from __future__ import annotations

import pytest

from muster_criteria.measured import BadResult
from muster_criteria.model import Severity, Verdict
from muster_criteria.rows import EXTRA_MAX, rows_of
from muster_criteria.stage.findings import FINDINGS_MAX
from tests.muster_criteria.nodes import Case, MakeCase


def phantoms(case: MakeCase, number: int) -> Case:
    """A healthy node that reports the memory bandwidth of GPUs which neither its SKU nor its inventory has."""
    made = case("performance")
    for slot in range(8, 8 + number):
        made.add("memory_bandwidth", "memory_bandwidth", f"gpu{slot}", 2800.0, "GB/s", labels={"op": "copy"})
    return made


@pytest.mark.parametrize(("device", "accepted"), [("gpu9999", True), ("gpu10000", False), ("gpu99999", False)])
def test_device_numbers_are_bounded(case: MakeCase, device: str, accepted: bool) -> None:
    made = case("intake").add("inventory", "gpu_uuid", device, "GPU-9", "text")
    if accepted:
        assert made.result()
    else:
        with pytest.raises(BadResult):
            made.result()


def test_phantom_gpus_are_invalid_in_every_probe(case: MakeCase) -> None:
    made = phantoms(case, 3)
    rows = [row for row in rows_of(made.result(), made.sku) if row.metric == "memory_bandwidth"]
    assert {row.device for row in rows if row.refused} == {"gpu8", "gpu9", "gpu10"}
    assert all(row.value is None for row in rows if row.refused)
    judgement = made.judge()
    assert judgement.verdict is Verdict.FAIL
    assert {(each.code, each.device) for each in judgement.findings} == {
        ("expected_devices.extra", device) for device in ("gpu8", "gpu9", "gpu10")
    }


def test_thousands_of_phantom_gpus_make_few_findings(case: MakeCase) -> None:
    assert len(phantoms(case, 2000).judge().findings) == EXTRA_MAX


def test_of_thousands_of_findings_the_first_of_each_device_are_kept_and_the_rest_is_counted(case: MakeCase) -> None:
    made = case("performance")
    for number in range(3000):
        slot = number // 2000  # two thousand of gpu0, one thousand of gpu1
        labels = {"dtype": "bf16", "x": str(number)}
        made.add("gemm_rate", "gemm_rate", f"gpu{slot}", 100.0, "TFLOPS", labels=labels)
    judgement = made.judge()
    assert judgement.verdict is Verdict.FAIL
    assert len(judgement.findings) == FINDINGS_MAX + 1
    assert {each.device for each in judgement.findings if each.rule == "floor"} == {"gpu0", "gpu1"}
    (rest,) = [each for each in judgement.findings if each.rule == "left_out"]
    assert (rest.severity, rest.observed) == (Severity.CRITICAL, f"{3000 - FINDINGS_MAX} findings")


def test_a_gpu_that_only_the_inventory_misses_is_missing(case: MakeCase) -> None:
    made = case("performance")
    made.raw["measurements"] = [
        row for row in made.raw["measurements"] if (row["probe"], row["device"]) != ("inventory", "gpu3")
    ]
    assert {(each.code, each.device) for each in made.judge().findings} == {("expected_devices.missing", "gpu3")}
