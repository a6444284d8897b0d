"""Each counter of the campaign rises on a planted defect, and stays at 0 on what only looks like one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos import observers, schedulers
from tests.chaos.evidence import Evidence, Job, Line, Quarantined, Run, Sample, Stage
from tests.chaos.ledger import Drain
from tests.chaos.schedulers import Shown
from tests.chaos.world import PERSON

RUN = "n0__life-1"
GOOD = Evidence(
    machines={"n0": [(0.0, False), (100.0, True)]},
    drains=(Drain("n0", "bad fan 7", 40.0, 50.0),),
    diary=(Line("n0", 10.0, "start", "j1", "intake"), Line("n0", 12.0, "measured", "j1", "aa")),
    samples=(
        Sample(20.0, "n0", False, "", False),
        Sample(45.0, "n0", True, "bad fan 7", False),
        Sample(110.0, "n0", True, "muster: FAIL", True),
    ),
    shown={"n0": Shown(True, "muster: FAIL")},
    nodes={"n0": "quarantine"},
    jobs={"j1": Job(RUN, "n0", "intake")},
    runs=(Run("node_qualification", RUN, "n0", True, "PASS", ""),),
    stages=(Stage(RUN, "n0", "intake", "PASS", "aa", 13.0),),
    quarantined=(Quarantined("n0", 130.0, "muster", "the run found a critical fault"),),
    leases=(("n0", "n0__life-2"),),
    live=frozenset(),
    mails=(("<m1>", RUN, "n0"), ("<m2>", "", "")),
    events=frozenset({"1@5", "2@6"}),
    accepted=frozenset({"1@5", "2@6"}),
)
"""A fleet to which nothing bad happened, but for a lease that is live in the tests that want one."""
CALM = dataclasses.replace(GOOD, leases=())

PLANTED: dict[str, dict[str, Any]] = {
    "results_lost": {"diary": (*GOOD.diary, Line("n0", 15.0, "measured", "j1", "bb"))},  # type: ignore[misc]
    "false_admissions": {"samples": (Sample(120.0, "n0", False, "", True),)},
    "false_quarantines": {"quarantined": (Quarantined("n0", 30.0, "muster", "the run found a critical fault"),)},
    "double_tests": {"diary": (*GOOD.diary, Line("n0", 15.0, "start", "j1", "intake"))},  # type: ignore[misc]
    "leases_leaked": {"leases": GOOD.leases},
    "processes_left_on_nodes": {"processes": (("n0", "python agent.pyz run"),)},
    "nodes_left_drained": {"nodes": {"n0": "production"}},
    "foreign_drains_undone": {"samples": (Sample(45.0, "n0", False, "", False),)},
    "mails_lost": {"mails": ()},
    "mails_doubled": {"mails": (("<m1>", RUN, "n0"), ("<m1>", RUN, "n0"))},
    "events_lost": {"accepted": frozenset({"1@5", "2@4"})},
    "hung": {"live": frozenset({RUN})},
}
TWICE = PLANTED["double_tests"] | {
    "forgotten": frozenset({"aa"}),
    "stages": (Stage(RUN, "n0", "intake", "PASS", "aa", 17.0),),
}
"""Started again at 15, after the result of 12 was recorded, tidied up and forgotten."""


def _found(name: str, **changed: Any) -> list[str]:
    """What an observer counts of the calm fleet with these changes."""
    count = observers.OBSERVERS[name](dataclasses.replace(CALM, **changed))
    assert count is not None
    return count.found


def test_nothing_is_counted_of_a_fleet_to_which_nothing_bad_happened() -> None:
    assert {name: _found(name) for name in observers.OBSERVERS} == {name: [] for name in observers.OBSERVERS}


def test_each_counter_says_of_how_many_it_counted() -> None:
    counts = {name: count and count.examined for name, count in observers.judge(CALM).items()}
    assert counts == {
        "results_lost": 1, "false_admissions": 2, "false_quarantines": 1, "double_tests": 1, "leases_leaked": 1,
        "processes_left_on_nodes": 1, "nodes_left_drained": 0, "foreign_drains_undone": 1, "mails_lost": 1,
        "mails_doubled": 2, "events_lost": 2, "hung": 1,
    }  # fmt: skip
    nothing = observers.judge(Evidence())
    assert {count and count.examined for count in nothing.values()} == {0}


@pytest.mark.parametrize(("examined", "total"), [([], None), ([3], 3), ([3, 0], 3), ([3, None], None)])
def test_what_the_legs_examined_adds_up_if_each_knows_it(examined: list[int | None], total: int | None) -> None:
    legs = [{"examined": dict.fromkeys(observers.OBSERVERS, each)} for each in examined]
    assert chaos.examined(legs) == dict.fromkeys(observers.OBSERVERS, total)


def test_each_counter_has_a_planted_defect() -> None:
    assert set(PLANTED) == set(observers.OBSERVERS)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_raises_its_counter(name: str) -> None:
    assert len(_found(name, **PLANTED[name])) >= 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("results_lost", "diary"), ("results_lost", "sides"), ("false_admissions", "samples"),
        ("false_quarantines", "quarantined"),
        ("double_tests", "stages"), ("leases_leaked", "live"), ("processes_left_on_nodes", "processes"),
        ("nodes_left_drained", "shown"), ("foreign_drains_undone", "samples"), ("mails_lost", "unsent"),
        ("mails_doubled", "mails"), ("events_lost", "accepted"), ("hung", "live"),
    ],
)  # fmt: skip
def test_a_counter_without_its_source_is_unknown_and_not_0(name: str, source: str) -> None:
    assert observers.OBSERVERS[name](dataclasses.replace(CALM, **{source: None})) is None


NODE: dict[str, Any] = {"metadata": {}, "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}}
CORDONED: dict[str, Any] = {
    "metadata": {"annotations": {schedulers.WRITTEN: "withdrawn: FAIL", schedulers.WHY: "bad fan 7"}},
    "spec": {"unschedulable": True},
}
TAINTED = CORDONED | {"spec": {"taints": [{"key": schedulers.TAINT, "effect": "NoSchedule"}]}}
BOTH = CORDONED | {"spec": CORDONED["spec"] | TAINTED["spec"]}


def _sampled(at: float, node: dict[str, Any], *, faulty: bool = False) -> Sample:
    return Sample(at, "n0", *schedulers.shown_by_kubernetes(node), faulty)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("false_admissions", {"samples": (_sampled(120.0, NODE, faulty=True),)}),
        ("false_admissions", {"shown": {"n0": schedulers.shown_by_kubernetes(NODE)}}),
        (
            "false_admissions",
            {
                "samples": (_sampled(25.0, TAINTED), _sampled(30.0, NODE)),
                "worn": (("n0", 20.0),),
                "known": (("n0", 24.0),),
            },
        ),
        (
            "nodes_left_drained",
            {"nodes": {"n0": "production"}, "shown": {"n0": schedulers.shown_by_kubernetes(TAINTED)}},
        ),
        ("foreign_drains_undone", {"samples": (_sampled(45.0, NODE),)}),
        ("foreign_drains_undone", {"samples": (_sampled(45.0, TAINTED),)}),
    ],
    ids=["faulty", "open at the end", "returned", "tainted", "uncordoned", "tainted in its place"],
)
def test_a_defect_that_kubernetes_shows_raises_its_counter(name: str, changed: dict[str, Any]) -> None:
    assert len(_found(name, **changed)) == 1


@pytest.mark.parametrize("node", [CORDONED, BOTH], ids=["alone", "with Muster's taint"])
def test_a_persons_cordon_in_kubernetes_is_no_defect(node: dict[str, Any]) -> None:
    assert _found("foreign_drains_undone", samples=(_sampled(45.0, node),)) == []


RETURNED = (
    Sample(21.0, "n0", False, "", False),
    Sample(25.0, "n0", True, "muster: row_remap_pending", False),
    Sample(30.0, "n0", False, "", False),
)
"""A node that leaves service and returns."""
FORGOTTEN = {
    "samples": RETURNED,
    "worn": (("n0", 20.0),),
    "known": (("n0", 24.0),),
    "restores": ((22.0, 27.0),),
    "let_in": (),
}
"""The same, where the records were restored meanwhile as they had been before they knew."""
REBUILT = PLANTED["false_admissions"] | {"restores": ((90.0, 110.0),), "let_in": (("n0", 115.0),)}
"""A faulty machine that a person let in, where the records were restored as of before it was built."""


@pytest.mark.parametrize(
    "changed",
    [
        {"shown": {"n0": Shown(False, "")}},
        {"diary": (Line("n0", 12.0, "measured", "j1", "bb"), Line("n0", 12.0, "tampered", "j1", "replayed"))},
        {"samples": RETURNED, "worn": (("n0", 20.0),), "known": (("n0", 24.0),)},
        FORGOTTEN,
        FORGOTTEN | {"let_in": (("n0", 26.0),)},
        FORGOTTEN | {"let_in": (("n0", 29.0),), "known": (("n0", 24.0), ("n0", 28.0))},
        REBUILT | {"let_in": ()},
        REBUILT | {"let_in": (("n1", 115.0),)},
        REBUILT | {"let_in": (("n0", 105.0),)},
        REBUILT | {"restores": ((101.0, 110.0),)},
    ],
    ids=[
        "open at the end and not in service",
        "passed by another job's result",
        "returned without a repair",
        "opened by restored records alone",
        "let in before they were restored",
        "known again when it was let in",
        "rebuilt, and opened by restored records alone",
        "rebuilt, and another let in",
        "rebuilt, and let in before they were restored",
        "rebuilt before the back-up",
    ],
)
def test_what_else_is_a_false_admission(changed: dict[str, Any]) -> None:
    assert len(_found("false_admissions", **changed)) == 1


def test_a_side_of_a_pair_is_lost_without_its_record() -> None:
    side = Job(RUN, "n0", "fabric_round_2")
    measured = {
        "jobs": {**GOOD.jobs, "j2": side},  # type: ignore[dict-item]
        "diary": (*GOOD.diary, Line("n0", 15.0, "measured", "j2", "cc")),  # type: ignore[misc]
    }
    assert len(_found("results_lost", **measured)) == 1
    assert _found("results_lost", **measured, sides=frozenset({side})) == []


def test_a_reboot_that_did_not_happen_explains_no_quarantine() -> None:
    reason = f"burn_in: the machine {observers.REBOOTED}"
    other = {
        "quarantined": (Quarantined("n0", 30.0, "muster", reason),),
        "reboots": (("n1", 25.0), ("n0", 35.0)),
    }
    assert len(_found("false_quarantines", **other)) == 1


@pytest.mark.parametrize(
    "added",
    [Line("n0", 11.0, "overlap", "j2", "intake"), Line("n0", 20.0, "start", "j2", "intake")],
    ids=["during another job", "again after its verdict"],
)
def test_what_else_is_a_double_test(added: Line) -> None:
    jobs = {"j1": Job(RUN, "n0", "intake"), "j2": Job(RUN, "n0", "intake")}
    assert CALM.diary is not None
    assert len(_found("double_tests", jobs=jobs, diary=(*CALM.diary, added))) == 1


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("results_lost", PLANTED["results_lost"] | {"jobs": {}, "forgotten": frozenset({"j1"})}),
        ("results_lost", PLANTED["results_lost"] | {"forgotten": frozenset({"bb"})}),
        ("mails_lost", PLANTED["mails_lost"] | {"forgotten": frozenset({f"node_qualification/{RUN}/1"})}),
        ("mails_doubled", PLANTED["mails_doubled"] | {"resent": (("<m1>", RUN, "n0"),)}),
        (
            "false_quarantines",
            {"machines": {"n0": [(0.0, True), (20.0, False)]}, "restores": ((10.0, 25.0),)}
            | PLANTED["false_quarantines"],
        ),
        ("double_tests", TWICE | {"restores": ((5.0, 14.0),)}),
    ],
    ids=["a job", "a result", "a mail", "a mail that was sent", "what condemned a machine", "a result that was tidied"],
)
def test_what_a_restored_back_up_lacks_is_not_counted(name: str, changed: dict[str, Any]) -> None:
    assert _found(name, **changed) == []


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("results_lost", PLANTED["results_lost"] | {"forgotten": frozenset({"j2", "cc"})}),
        ("mails_lost", PLANTED["mails_lost"] | {"forgotten": frozenset({"node_qualification/n0__life-2/1"})}),
        ("mails_doubled", {"mails": (("<m1>", RUN, "n0"),) * 3, "resent": (("<m1>", RUN, "n0"),)}),
        ("false_quarantines", {"restores": ((10.0, 25.0),)} | PLANTED["false_quarantines"]),
        (
            "false_quarantines",
            {"machines": {"n0": [(0.0, True), (20.0, False)]}, "restores": ((10.0, 35.0),)}
            | PLANTED["false_quarantines"],
        ),
        (
            "false_quarantines",
            {"machines": {"n0": [(0.0, True), (27.0, False)]}, "restores": ((10.0, 25.0),)}
            | PLANTED["false_quarantines"],
        ),
        ("double_tests", TWICE | {"restores": ((5.0, 11.0),)}),
        ("double_tests", TWICE | {"restores": ((5.0, 16.0),)}),
        ("double_tests", TWICE | {"restores": ((5.0, 14.0),), "forgotten": frozenset({"bb"})}),
    ],
    ids=[
        "another's result",
        "another's mail",
        "thrice",
        "a healthy machine",
        "before it was restored",
        "rebuilt since",
        "restored before it was measured",
        "restored after the second start",
        "a result that was kept",
    ],
)
def test_a_restored_back_up_explains_nothing_else(name: str, changed: dict[str, Any]) -> None:
    assert len(_found(name, **changed)) == 1


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("results_lost", PLANTED["results_lost"] | {"touched": frozenset({RUN})}),
        ("mails_lost", PLANTED["mails_lost"] | {"unsent": (f"node_qualification/{RUN}/1",)}),
        ("results_lost", PLANTED["results_lost"] | {"live": frozenset({RUN})}),
        (
            "processes_left_on_nodes",
            PLANTED["processes_left_on_nodes"] | {"leases": (("n0", RUN),), "live": frozenset({RUN})},
        ),
        ("leases_leaked", {"leases": (("n0", RUN),), "live": frozenset({RUN})}),
        ("foreign_drains_undone", {"samples": (Sample(60.0, "n0", False, "", False),)}),
        ("nodes_left_drained", PLANTED["nodes_left_drained"] | {"drains": (Drain("n0", "bad fan 7", 40.0),)}),
        ("false_quarantines", {"quarantined": (Quarantined("n0", 30.0, "muster", "3 runs were inconclusive"),)}),
        ("false_quarantines", {"quarantined": (Quarantined("n0", 30.0, PERSON, "smells of smoke"),)}),
        (
            "false_quarantines",
            {
                "quarantined": (Quarantined("n0", 30.0, "muster", f"burn_in: the machine {observers.REBOOTED}"),),
                "reboots": (("n0", 25.0),),
            },
        ),
        ("double_tests", {"stages": (Stage(RUN, "n0", "intake", "INCONCLUSIVE", "aa", 5.0),)}),
        ("false_quarantines", PLANTED["false_quarantines"] | {"worn": (("n0", 20.0),)}),
        # Its test had closed it before anything was known.
        ("false_admissions", {"samples": RETURNED, "worn": (("n0", 20.0),), "known": (("n0", 28.0),)}),
        (
            "false_admissions",
            {
                "samples": RETURNED,
                "worn": (("n0", 20.0),),
                "known": (("n0", 24.0),),
                "diary": (*GOOD.diary, Line("n0", 27.0, "reset", "none", "165")),  # type: ignore[misc]
            },
        ),
        # The records that a person let it in by were restored, and lacked it.
        ("false_admissions", FORGOTTEN | {"let_in": (("n0", 29.0),)}),
        ("false_admissions", REBUILT),
    ],
)
def test_what_a_person_or_a_fault_explains_is_not_counted(name: str, changed: dict[str, Any]) -> None:
    assert _found(name, **changed) == []
