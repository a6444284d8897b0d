"""The severity of what is reported: a driver's error that no policy judges is grave, of any vendor's GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster import store
from muster.judging import health
from muster.judging.health import classed
from muster.model.health import Report
from muster_criteria.health.readings import UNCLASSED, Reading
from muster_criteria.sku_files.skus import SHIPPED
from tests.muster import fleet


@pytest.mark.parametrize("check", ["xid/79", "sxid/20034", "amdgpu/7"])
def test_a_drivers_error_without_a_policy_is_grave(check: str) -> None:
    assert classed(Reading(check, severity="IGNORE"), ()).severity == UNCLASSED


@pytest.mark.parametrize("check", ["alert/404", "event/79", "kernel/machine-check", "gpu_lost"])
def test_other_checks_keep_the_severity_that_was_reported(check: str) -> None:
    assert classed(Reading(check, severity="MONITOR"), ()).severity == "MONITOR"


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.parametrize("before", ["nonsense: 1\n", ""])
def test_a_sku_file_that_is_corrected_or_added_counts_in_the_same_process(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path))
    store.nodes.add(fleet.new_node("n1"))
    file = tmp_path / "acme-8.yaml"
    if before:
        file.write_text(before)

    def severity(device: str) -> str:
        health.record([Report("n1", "epilog", (Reading("xid/31", device),), "b1")], {"n1": "acme-8"})
        return {each.device: each.severity for each in store.health.of_node("n1")}[device]

    assert severity("gpu0") == UNCLASSED
    file.write_text((SHIPPED / "h100-sxm-8.yaml").read_text().replace("sku: h100-sxm-8", "sku: acme-8"))
    assert severity("gpu1") == "MONITOR"
