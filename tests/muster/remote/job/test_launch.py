"""The command line for each way of launching the node side."""

from __future__ import annotations

import pytest

from muster.remote.job import launch

AGENT = "/home/a/.muster/agents/abc.pyz"
RUN = ["run", "/home/a/.muster/jobs/k/plan.json"]
OCI = "run --rm --pid=host --ipc=host --network=host --workdir /home/a/.muster --name muster-k"
WORK = "/home/a/.muster:/home/a/.muster"
FENCE = "/var/lib/muster:/var/lib/muster"
ENV = "--env MUSTER_WORK=/home/a/.muster"


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, "python3"),
        ({"kind": "python", "python": "/opt/python3.12"}, "/opt/python3.12"),
        ({"kind": "python", "env": {"B": "2", "A": "1"}}, "env A=1 B=2 python3"),
        ({"kind": "venv", "path": "/opt/torch"}, "/opt/torch/bin/python"),
        ({"kind": "podman", "image": "torch:1"}, f"podman {OCI} --volume {WORK} {ENV} torch:1 python3"),
        (
            {"kind": "podman", "image": "torch:1", "gpus": True, "options": ["--privileged"], "env": {"A": "1"}},
            f"podman {OCI} --volume {WORK} {ENV} --env A=1 --device nvidia.com/gpu=all --privileged torch:1 python3",
        ),
        (
            {"kind": "podman", "image": "torch:1", "env": {"MUSTER_FENCE": "/var/lib/muster"}},
            f"podman {OCI} --volume {WORK} --volume {FENCE} {ENV} --env MUSTER_FENCE=/var/lib/muster torch:1 python3",
        ),
        (
            {"kind": "enroot", "image": "torch", "env": {"MUSTER_FENCE": "/var/lib/muster"}},
            f"enroot start --rw --mount {WORK} --mount {FENCE} {ENV} --env MUSTER_FENCE=/var/lib/muster torch python3",
        ),
        (
            {"kind": "apptainer", "image": "t.sif", "env": {"MUSTER_FENCE": "/var/lib/muster"}},
            f"apptainer exec --bind {WORK} --bind {FENCE} {ENV} --env MUSTER_FENCE=/var/lib/muster t.sif python3",
        ),
        (
            {"kind": "docker", "image": "torch:1", "gpus": True},
            f"docker {OCI} --volume {WORK} {ENV} --gpus all torch:1 python3",
        ),
        ({"kind": "enroot", "image": "torch"}, f"enroot start --rw --mount {WORK} {ENV} torch python3"),
        (
            {"kind": "apptainer", "image": "t.sif", "gpus": True},
            f"apptainer exec --bind {WORK} {ENV} --nv t.sif python3",
        ),
    ],
)
def test_command_lines(how: dict[str, object], expected: str) -> None:
    assert launch.command_for(how, AGENT, RUN, key="k") == [*expected.split(), AGENT, *RUN]


def test_what_is_no_test_runs_on_the_host() -> None:
    for kind in launch.CONTAINERS:
        how = {"kind": kind, "image": "torch", "python": "/opt/in-image/python", "env": {"A": "1"}}
        assert launch.on_host(how, AGENT, ["sweep"]) == ["env", "A=1", "python3", AGENT, "sweep"]
        named = {**how, "host_python": "/opt/python3.12"}
        assert launch.on_host(named, AGENT, ["sweep"]) == ["env", "A=1", "/opt/python3.12", AGENT, "sweep"]


@pytest.mark.parametrize(
    "how",
    [
        {"python": "~/torch/bin/python"},
        {"kind": "venv", "path": "~/torch"},
        {"kind": "apptainer", "image": "~/torch.sif"},
    ],
)
def test_a_home_is_written_out(how: dict[str, object]) -> None:
    """No shell reads these words on the node, and where one did, the same setting named two programs."""
    with pytest.raises(launch.BadLaunch):
        launch.command_for(how, AGENT, RUN)
