"""What a SKU says by itself, in a sweep: floors, ceilings, exact numbers, and devices that do not answer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from muster_criteria.fleet.absolute import absolute
from muster_criteria.fleet.series.readings import as_readings
from muster_criteria.rows import PRESENCE
from muster_criteria.sku_files.model import Sku

COPY, BF16, HARDWARE = "op=copy", "dtype=bf16", "reason=hw_thermal"


def readings(sku: Sku, *rows: tuple[str, str, str, str, float]) -> pd.DataFrame:
    columns = ["device", "metric", "labels", "unit", "value"]
    frame = pd.DataFrame(list(rows), columns=columns)
    return as_readings(frame.assign(node="n", group="g", sku=sku.name, at=1.0, run="r"))


def limit_of(sku: Sku, metric: str, labels: dict[str, str], key: str) -> float:
    found = [each for each in sku.limits if each.metric == metric and each.labels == labels and each.key == key]
    number = found[0].number
    assert number is not None
    return number


@pytest.mark.parametrize(
    ("metric", "labels", "unit", "key", "worse"),
    [
        ("memory_bandwidth", COPY, "GB/s", "floor", -np.inf),
        ("gemm_rate", BF16, "TFLOPS", "ceiling", np.inf),
        ("throttle_time", HARDWARE, "s", "exactly", np.inf),
    ],
)
def test_a_limit_is_broken_just_beyond_it(
    h100: Sku, metric: str, labels: str, unit: str, key: str, worse: float
) -> None:
    at = limit_of(h100, metric, dict([labels.split("=")]), key)
    for value, broken in ((at, False), (float(np.nextafter(at, worse)), True)):
        found = absolute(readings(h100, ("gpu3", metric, labels, unit, value)), {h100.name: h100})
        assert (key in set(found["rule"])) == broken


def test_a_limit_of_one_stage_is_left_to_the_judge_of_the_node(h100: Sku) -> None:
    """A link that sleeps at a lower generation between the tests is no finding; readings do not tell the stage."""
    assert limit_of_stage(h100, "pcie_generation") == ("intake",)
    assert absolute(readings(h100, ("gpu3", "pcie_generation", "", "count", 1.0)), {h100.name: h100}).empty


def limit_of_stage(sku: Sku, metric: str) -> tuple[str, ...]:
    (found,) = [each for each in sku.all_limits if each.metric == metric]
    return found.stages


def test_in_another_unit_or_of_another_sku_no_limit_judges_it(h100: Sku) -> None:
    assert absolute(readings(h100, ("gpu3", "memory_bandwidth", COPY, "MB/s", 1.0)), {h100.name: h100}).empty
    assert absolute(readings(h100, ("gpu3", "memory_bandwidth", COPY, "GB/s", 1.0)), {}).empty


def test_a_device_that_does_not_answer_is_named_unless_none_does(h100: Sku) -> None:
    answers = [(f"gpu{slot}", PRESENCE, "", "bool", float(slot != 3)) for slot in range(8)]
    found = absolute(readings(h100, *answers), {h100.name: h100})
    assert found[["row", "rule", "breach"]].to_numpy().tolist() == [[3, "expected_devices", "fail"]]

    none = [(f"gpu{slot}", PRESENCE, "", "bool", 0.0) for slot in range(8)]
    assert absolute(readings(h100, *none), {h100.name: h100}).empty
