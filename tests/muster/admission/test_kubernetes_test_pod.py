"""Test pods in Kubernetes: what they request."""

from __future__ import annotations

from typing import Any

import pytest

from muster.admission.kubernetes_test_pod import resources_left


def test_what_the_pods_on_a_node_leave_of_it() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    allocatable = {"cpu": "8", "memory": "1Gi", "nvidia.com/gpu": "8", "hugepages-2Mi": "0", "pods": "110"}
    daemon = {
        "initContainers": [container("1500m"), container("500m", restartPolicy="Always")],
        "containers": [container("250m"), {"resources": {"requests": {"memory": "24M"}}}],
        "overhead": {"cpu": "50m"},
    }
    left = resources_left({"status": {"allocatable": allocatable}}, [{"spec": daemon}, {"spec": {"containers": [{}]}}])
    assert left == {"cpu": "6.450", "memory": str(2**30 - 24_000_000), "nvidia.com/gpu": "8"}


@pytest.mark.parametrize(
    ("first", "whole", "needed"),
    [
        ([("2", "Always"), ("8", "")], "", 10),
        ([("8", ""), ("2", "Always")], "", 8),
        ([("2", "Always"), ("3", "Always")], "", 6),
        ([("2", "Always"), ("8", "")], "4", 4),
    ],
    ids=["needs the sidecar before it", "ends before the sidecar", "sidecars", "for the whole pod"],
)
def test_sidecars_and_requests_of_whole_pods_count_as_the_scheduler_counts_them(
    first: list[tuple[str, str]], whole: str, needed: int
) -> None:
    pod = {
        "initContainers": [{"resources": {"requests": {"cpu": cpu}}, "restartPolicy": policy} for cpu, policy in first],
        "containers": [{"resources": {"requests": {"cpu": "1"}}}],
        "resources": {"requests": {"cpu": whole}} if whole else {},
        "overhead": {"cpu": "1"},
    }
    left = resources_left({"status": {"allocatable": {"cpu": "64"}}}, [{"spec": pod}])
    assert left == {"cpu": f"{63 - needed}.000"}
