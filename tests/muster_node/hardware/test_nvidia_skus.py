"""What each shipped SKU requires of NVIDIA GPUs under load is what NVML's answers give."""

from __future__ import annotations

import pynvml
import pytest

from muster_criteria.sku_files.programme import needs
from muster_criteria.sku_files.skus import list_skus, load_sku
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.hardware.seam import NOT_SUPPORTED
from muster_node.workloads.under_load.gpus import METRICS, Reading, under_load
from tests.muster_node.hardware.nvml_standin import FakeNvml

NVIDIA = [name for name in list_skus() if "NVIDIA" in load_sku(name).title]


@pytest.mark.parametrize("name", NVIDIA)
def test_what_a_sku_requires_under_load_is_reported(name: str) -> None:
    sku = load_sku(name)
    wanted = [
        need
        for stage in sku.programme.stages
        for need in needs(sku, stage, "standard")
        if need.probe == "gpu_watch" and need.requirement.metric in METRICS
    ]
    nvml = FakeNvml(count=1)
    if "nvlink_active" not in {need.requirement.metric for need in wanted}:  # cards without NVLink
        nvml.refuse["nvmlDeviceGetNvLinkState"] = pynvml.NVML_ERROR_NOT_SUPPORTED
        nvml.module_ids = [1]
    gpus = NvidiaGpus(nvml)
    device = gpus.devices()[0].id
    readings = [Reading(float(at), tuple(gpus.states())) for at in range(0, 100, 10)]
    found = list(under_load(readings, [device], {device: {"none": 90.0}}))
    assert wanted
    for need in wanted:
        labels = dict(need.labels).items()
        rows = [each for each in found if each.metric == need.requirement.metric and labels <= each.labels.items()]
        assert rows, f"{need.requirement.metric} {need.labels} is not reported"
        for row in rows:
            required = need.requirement
            excused = required.where_readable or (required.where_supported and row.note == NOT_SUPPORTED)
            assert row.value is not None or row.text is not None or excused, row
