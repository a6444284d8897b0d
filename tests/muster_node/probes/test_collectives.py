"""Collectives between real processes."""

import pytest

from muster_node.probes import collectives
from muster_node.probes.collectives import OPS, Collectives, busbw_factor

pytestmark = pytest.mark.needs_torch


def test_every_operation_between_three_processes(run_probe):
    run = run_probe(Collectives, mib=[0.25], repeats=3, ranks=3)
    for op in OPS:
        assert run.one("collective_mismatches", "node", op=op).value == 0
        rate = run.one("collective_busbw", "node", op=op)
        assert 0 < rate.value < 1000
        assert rate.samples == 3
        # the buffer is cut to a multiple of the ranks
        assert int(rate.labels["bytes"]) == 262144 // 4 // 3 * 3 * 4


@pytest.mark.parametrize("op", OPS)
def test_a_rank_that_corrupts_is_found(run_probe, monkeypatch, op):
    honest = collectives.prepare

    def tampered(torch, name, rank, ranks, elements):
        reset, run, check = honest(torch, name, rank, ranks, elements)
        if name != op or rank != 1:
            return reset, run, check

        def corrupt():
            run()
            result = dict(zip(check.__code__.co_freevars, check.__closure__, strict=True))["result"].cell_contents
            result[3] += 1

        return reset, corrupt, check

    monkeypatch.setattr(collectives, "prepare", tampered)
    run = run_probe(Collectives, mib=[0.1], repeats=1, ranks=2, ops=[op])
    assert run.one("collective_mismatches", op=op).value == 3  # once for each pass, warm-up included


def test_factors_of_nccl_tests():
    assert busbw_factor("all_reduce", 8) == pytest.approx(1.75)
    assert busbw_factor("all_gather", 8) == busbw_factor("reduce_scatter", 8) == pytest.approx(0.875)
    assert busbw_factor("broadcast", 8) == 1.0
