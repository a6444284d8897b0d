"""The main job itself, unattended, as a user runs it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from muster import records
from muster.demo import custody
from muster.demo.draw import draw_faults, node_names
from muster.demo.service import ACTOR
from tests.demo.started import Demo

SEEDS = (1, 5)
MAILS = 7 + 2 + 1
"""One for each qualification, for each member of the block of healthy nodes, and for the revalidation."""

pytestmark = [pytest.mark.demo, pytest.mark.needs_torch, pytest.mark.minutes(13)]


@pytest.mark.timeout(1900)
@pytest.mark.parametrize(("seed", "more"), list(zip(SEEDS, [(), ("--ask",)], strict=True)))
def test_unattended_it_finds_every_fault_and_takes_everybody_else_into_service(
    seed: int, more: tuple[str, ...], start: Callable[..., Demo], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = start("--exit", "--seed", str(seed), *more)
    status = demo.process.wait()
    said, directory = demo.said(), demo.directory
    assert status == 0, said
    assert "checks hold" in said
    for fault in draw_faults(seed):
        assert fault.node in said
        assert fault.device in said
    assert len(list((directory / "mail").glob("*.eml"))) == MAILS
    healthy = set(node_names()) - {fault.node for fault in draw_faults(seed)}
    for node in healthy:
        assert f"{node} was admitted by {ACTOR}" in said if more else f"{node} entered production by itself" in said
    assert custody.marked(str(directory)) == []
    times = busy_times(directory, monkeypatch)
    host = [time for time in times if time[2]]
    assert len(host) == 4
    for begin, end, _real, what in host:
        beside = [other for *when, real, other in times if not real and when[0] < end and when[1] > begin]
        assert not beside, f"{what} was measured beside {', '.join(beside)}"


def busy_times(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, bool, str]]:
    """(begin, end, whether real, what) of every job that loaded a node, by the nodes' own results."""
    monkeypatch.setenv("MUSTER_HOME", str(directory / "muster"))
    records.dispose()
    reports = [records.run_report(run.dag_id, run.run_id, node=run.node) for run in records.list_runs()]
    records.dispose()
    times = []
    for report in reports:
        for stage in report.stages:
            if stage.judgement.stage != "intake" and stage.started_at is not None:
                begin = stage.started_at.timestamp()
                what = f"{report.node} {stage.judgement.stage}"
                times.append((begin, begin + (stage.duration_s or 0.0), not report.simulated, what))
    return times


def test_the_seeds_tested_plant_every_fault_elsewhere() -> None:
    first, second = (draw_faults(seed) for seed in SEEDS)
    for one, other in zip(first, second, strict=True):
        assert one.node != other.node
        assert one.gpu != other.gpu
