"""The faults that the demo plants in a member of its block: the examiner wants each named, on its GPU and no other."""

from __future__ import annotations

import dataclasses

import pytest

from muster_demo.scoring import NAMED_BY
from tests.muster_demo.test_scoring import Fleet, failed_in_block, mail, serving

SLOW, WRONG = ((rule, f"gpu{gpu}") for gpu, rule in enumerate(NAMED_BY.values()))


@pytest.mark.parametrize(
    ("named", "red"),
    [
        ((SLOW,), ["block"]),
        ((WRONG,), ["block"]),
        ((SLOW, (WRONG[0], "gpu5")), ["block"]),
        ((SLOW, WRONG, (SLOW[0], "gpu5")), ["block"]),
        ((), ["block", "block"]),
    ],
)
def test_a_block_that_named_another_gpu_or_none_turns_it_red(
    named: tuple[tuple[str, str], ...], red: list[str]
) -> None:
    fleet = Fleet()
    node = fleet.in_block[0].node
    fleet.change(node, validations=failed_in_block(node, *named).validations)
    assert fleet.wrong() == red


def test_a_block_that_blamed_a_second_member_turns_it_red() -> None:
    fleet = Fleet()
    node = fleet.healthy().node
    (block,) = fleet.services[node].validations
    accused = failed_in_block(node, SLOW).validations[0].stages
    fleet.change(node, validations=(dataclasses.replace(block, stages=accused),))
    assert fleet.wrong() == ["block"]


def test_a_member_that_is_in_service_although_it_corrupts_turns_it_red() -> None:
    fleet = Fleet()
    fleet.change(fleet.in_block[0].node, state="production", entered_by="muster", on_full_pass=True)
    assert fleet.wrong() == ["kept_out"]


def test_a_demo_without_a_block_is_red() -> None:
    fleet = Fleet()
    node = fleet.in_block[0].node
    fleet.in_block = ()
    fleet.services[node] = serving(node)
    fleet.mails.append(mail(node))
    assert fleet.wrong() == ["block"]
