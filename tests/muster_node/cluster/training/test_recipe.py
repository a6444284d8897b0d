"""What the ranks of a block agree to train, and how they name it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.cluster.training import acceptance
from muster_node.cluster.training.acceptance import Acceptance
from muster_node.cluster.training.pace import StepTimes
from muster_node.cluster.training.trainer import Recipe, Work
from muster_node.workloads.models import llama


class Group:
    """The first rank of a block of two nodes of one rank; ``other``: what the second one gathers, else the same."""

    rank, local, per_node, device = 0, 0, 1, SimpleNamespace(id="gpu0")

    def __init__(self, other: Any = None, world: int = 2) -> None:
        self.other, self.world = other, world
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.hardware = SimpleNamespace(simulated=False)

    def begin(self, phase: str) -> None:
        """It has no time limits."""

    def gather(self, payload: Any) -> list[Any]:
        return [payload, self.other or payload]

    def emit(self, metric: str, device: str, **fields: Any) -> None:
        self.rows[metric, device] = fields


def rank(kind: str, group: Group, **params: Any) -> Acceptance:
    made = Acceptance({"steps": 1, "model": None, "layout": None, "layers": None, "compile": False, **params}, 1, [])
    made._group, made._kind, made._torch = group, kind, None  # type: ignore[assignment]
    return made


def recipe_of(world: int, micro: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """As a block of so many devices, which do so many micro-batches in a step, reports it."""
    recipe = Recipe("8b", llama.SIZES["8b"], llama.FSDP, "bfloat16")
    monkeypatch.setattr(acceptance, "Trainer", lambda *given: None)
    monkeypatch.setattr(Acceptance, "_train", lambda *given: [])
    monkeypatch.setattr(Acceptance, "_rates", lambda *given: 1.0)
    monkeypatch.setattr(Acceptance, "_report", lambda *given: None)
    group = Group(world=world)
    made = rank("gpu", group)
    made._rate_alone = made._best = 1.0
    made._together(None, recipe, None, Work(micro, micro * 8192))  # type: ignore[arg-type]
    return str(group.rows["training_recipe", "node"]["text"])


def test_the_recipe_of_a_slow_or_small_block_is_that_of_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow device does fewer tokens a step, and a block without one of its nodes has fewer devices."""
    usual, slow, small = (recipe_of(*each, monkeypatch) for each in ((16, 2), (16, 1), (14, 2)))
    assert slow == small == usual
    assert "8b" in usual


@pytest.mark.parametrize(("one", "other"), [(llama.FSDP, llama.DDP), (llama.DDP, llama.FSDP)])
def test_of_two_layouts_of_one_size_the_one_is_taken_that_needs_less_memory(
    one: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "choose_size", lambda free, ranks: ("3b", one))
    compute: Any = SimpleNamespace(free_memory=lambda: 0.0)
    assert rank("gpu", Group(["3b", other]))._recipe(compute).layout == llama.FSDP


@pytest.mark.parametrize(("timed", "samples"), [(200, 20), (5, 5)])
def test_where_traces_tell_compute_and_wait_these_are_the_samples(timed: int, samples: int) -> None:
    """Each traced step computes for one second and waits for one; all times of a timed step are two seconds."""
    group, traced = Group(), list[int]()

    def split(number: int, work: Work) -> tuple[float, float]:
        traced.append(number)
        return 1.0, 1.0

    trainer: Any = SimpleNamespace(
        split=split, clock_mhz=lambda number, work: 1980.0, weights_digest=lambda: "",
        recipe=SimpleNamespace(layout=llama.FSDP),
    )  # fmt: skip
    rank("gpu", group)._report([StepTimes(2.0, 2.0, 2.0, 2.0, 2.0, 2.0)] * timed, trainer, Work(1, 8192))
    assert len(traced) == samples
    for metric in ("step_compute", "step_wait"):
        for device in ("gpu0", "node"):
            row = group.rows[metric, device]
            assert (row["value"], row["samples"]) == (1.0, samples)
    assert group.rows["step_p95_to_p50", "node"]["samples"] == timed
