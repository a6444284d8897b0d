"""The severity of what is reported: a driver's error that no policy judges is grave, of any vendor's GPU."""

from __future__ import annotations

import pytest

from muster.judging.health import classed
from muster_criteria.health.readings import UNCLASSED, Reading


@pytest.mark.parametrize("check", ["xid/79", "sxid/20034", "amdgpu/7"])
def test_a_drivers_error_without_a_policy_is_grave(check: str) -> None:
    assert classed(Reading(check, severity="IGNORE"), ()).severity == UNCLASSED


@pytest.mark.parametrize("check", ["alert/404", "event/79", "kernel/machine-check", "gpu_lost"])
def test_other_checks_keep_the_severity_that_was_reported(check: str) -> None:
    assert classed(Reading(check, severity="MONITOR"), ()).severity == "MONITOR"
