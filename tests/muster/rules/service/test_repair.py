"""The ladder: which repair comes next, and that no history leads to one that is not allowed."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.repairs import Attempt, Fault, Incident, Outcome
from muster.model.runs import StageVerdict
from muster.rules.service.repair import Act, Person, Situation, Wait, counts, next_step, proved
from muster_criteria import policy_file
from muster_criteria.model import Verdict
from muster_criteria.policy_file import BadPolicy
from muster_criteria.repair.ladder import RESTARTS, Ladder, RepairPolicy, Rung
from muster_criteria.sku_files.skus import SHIPPED
from muster_criteria.stages import LEVELS, STAGES
from tests.support.examples import examples, guarded, reached

TEXT = (SHIPPED / "policies" / "repair.yaml").read_text()
OFF = policy_file.parse(RepairPolicy, TEXT.encode(), "repair.yaml")
ALL_ON = "enabled: [{label: repair, value: auto, rungs: [reset_gpu, reboot, power_cycle]}]"
ON = policy_file.parse(RepairPolicy, TEXT.replace("enabled: []", ALL_ON).encode(), "repair.yaml")
NOW = datetime.datetime(2026, 11, 25, tzinfo=datetime.UTC)
FAULT = Fault("gpu_memory", "gpu3", "gpu S-3")
READY = Situation(FAULT, {"repair": "auto"}, (), idle=True, leased=True, bmc=True)


def tried(rung: str, days: float = 1.0, outcome: Outcome | None = Outcome.SUCCEEDED, fault: Fault = FAULT) -> Attempt:
    at = NOW - datetime.timedelta(days=days)
    ended = None if outcome is None else at
    return Attempt(1, 1, "n", fault, rung, at, outcome=outcome, ended_at=ended, days=int(days))


def chosen(*history: Attempt, fault: Fault = FAULT, policy: RepairPolicy = ON) -> Act | Person | Wait:
    return next_step(dataclasses.replace(READY, fault=fault, history=history), policy, NOW)


def test_the_ladder_rises_with_what_was_tried() -> None:
    first = chosen()
    assert isinstance(first, Act)
    assert first.rung is Rung.RESET_GPU
    second = chosen(tried("reset_gpu"))
    assert isinstance(second, Act)
    assert second.rung is Rung.REBOOT
    third = chosen(tried("reset_gpu", 2), tried("reboot"))
    assert isinstance(third, Person)
    assert third.rung is Rung.RMA
    again = chosen(tried("reset_gpu", 8), tried("reboot", 7.5))
    assert isinstance(again, Act)
    assert again.rung is Rung.RESET_GPU, "what lies longer back than the window"


@pytest.mark.parametrize(("place", "kind"), [("r1", Wait), ("r2", Act), ("", Act)])
def test_of_one_place_no_two_nodes_are_repaired_at_a_time(place: str, kind: type) -> None:
    now = dataclasses.replace(READY, labels={**READY.labels, "rack": "r1"}, others={"other": {"rack": place}})
    assert isinstance(next_step(now, ON, NOW), kind)


def test_a_clock_that_is_set_ahead_empties_no_budget() -> None:
    history = [dataclasses.replace(tried("reset_gpu", days), days=1) for days in (40.0, 39.0)]
    assert isinstance(chosen(*history), Person)
    found = chosen(*history[:1])
    assert isinstance(found, Act)
    assert found.rung is Rung.REBOOT, "the ladder goes on"


def test_another_gpus_repairs_use_up_the_nodes_budget_and_not_the_ladder() -> None:
    other = Fault("gpu_memory", "gpu5", "gpu S-5")
    found = chosen(tried("reset_gpu", fault=other))
    assert isinstance(found, Act)
    assert found.rung is Rung.RESET_GPU
    assert isinstance(chosen(tried("reset_gpu", fault=other), tried("reset_gpu", fault=other)), Person)


def test_a_part_is_followed_to_another_slot() -> None:
    found = chosen(tried("reset_gpu", fault=Fault("gpu_memory", "gpu7", "gpu S-3")))
    assert isinstance(found, Act)
    assert found.rung is Rung.REBOOT


@pytest.mark.parametrize(("before", "now"), [("gpu S-3", ""), ("", "gpu S-3")])
def test_where_one_of_two_faults_does_not_name_its_part_the_place_tells(before: str, now: str) -> None:
    """A GPU that is lost may have no serial any more; its budget goes on."""
    fault = Fault("gpu_memory", "gpu3", now)
    found = chosen(tried("reset_gpu", fault=dataclasses.replace(fault, part=before)), fault=fault)
    assert isinstance(found, Act)
    assert found.rung is Rung.REBOOT
    elsewhere = chosen(tried("reset_gpu", fault=Fault("gpu_memory", "gpu5", before)), fault=fault)
    assert elsewhere.rung is Rung.RESET_GPU


@pytest.mark.parametrize(("most", "kind"), [(1, Person), (2, Act)])
def test_restarts_have_a_budget_of_their_own(most: int, kind: type) -> None:
    lost = Fault("gpu_lost", "gpu3")
    text = TEXT.replace("enabled: []", ALL_ON).replace("restarts_max: 2", f"restarts_max: {most}")
    policy = policy_file.parse(RepairPolicy, text.encode(), "repair.yaml")
    found = chosen(tried("reboot", fault=lost), fault=lost, policy=policy)
    assert isinstance(found, kind)
    assert found.rung is Rung.POWER_CYCLE


def test_the_same_fault_after_two_restarts_is_a_persons() -> None:
    lost = Fault("gpu_lost", "gpu3")
    text = TEXT.replace("enabled: []", ALL_ON).replace("repairs_max: 2", "repairs_max: 9")
    policy = policy_file.parse(RepairPolicy, text.encode(), "repair.yaml")
    first = chosen(tried("reboot", fault=lost), fault=lost, policy=policy)
    assert isinstance(first, Act)
    assert first.rung is Rung.POWER_CYCLE
    twice = chosen(tried("reboot", 2, fault=lost), tried("power_cycle", fault=lost), fault=lost, policy=policy)
    assert isinstance(twice, Person)
    other = dataclasses.replace(lost, device="gpu5")
    assert isinstance(
        chosen(tried("reboot", 3, fault=other), tried("reboot", fault=lost), fault=lost, policy=policy), Act
    )


@pytest.mark.parametrize("outcome", [Outcome.TRANSIENT, Outcome.CANCELLED, Outcome.SUPERSEDED])
def test_what_was_certainly_not_carried_out_costs_nothing(outcome: Outcome) -> None:
    found = chosen(tried("reset_gpu", outcome=outcome))
    assert isinstance(found, Act)
    assert found.rung is Rung.RESET_GPU


def test_what_is_refused_again_and_again_is_a_persons() -> None:
    refused = [tried("reset_gpu", 0.1, Outcome.TRANSIENT) for _ in range(3)]
    assert isinstance(chosen(*refused[:2]), Act)
    assert isinstance(chosen(*refused), Person)
    later = [tried("reset_gpu", 2.0, Outcome.TRANSIENT) for _ in range(3)]
    assert isinstance(chosen(*later), Act)
    assert isinstance(chosen(*refused, tried("reset_gpu", 0.01)), Act), "one that was carried out ends the row"


def test_a_node_in_shadow_mode_is_a_persons() -> None:
    assert isinstance(next_step(dataclasses.replace(READY, shadow=True), ON, NOW), Person)


def test_what_is_unclear_counts_and_what_has_not_ended_stops() -> None:
    found = chosen(tried("reset_gpu", outcome=Outcome.PERMANENT))
    assert isinstance(found, Act)
    assert found.rung is Rung.REBOOT
    assert isinstance(chosen(tried("reset_gpu", outcome=None)), Wait)


def test_nothing_is_switched_on_as_shipped_and_no_rung_is_skipped() -> None:
    found = chosen(policy=OFF)
    assert isinstance(found, Person)
    assert found.rung is Rung.RESET_GPU
    enabled = "enabled: [{label: repair, value: auto, rungs: [reboot]}]"
    policy = policy_file.parse(RepairPolicy, TEXT.replace("enabled: []", enabled).encode(), "repair.yaml")
    found = chosen(policy=policy)
    assert isinstance(found, Person)
    assert found.rung is Rung.RESET_GPU


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"history": None}, Person), ({"idle": False}, Wait), ({"idle": None}, Wait), ({"leased": False}, Wait),
        ({"bmc": False}, Act), ({"simulated": True}, Act), ({"simulated": True, "fault": Fault("gpu_lost")}, Person),
        ({"reachable": False}, Person), ({"labels": {}}, Person),
        ({"labels": {"repair": "auto", "repair_owner": "jira"}}, Person),
        ({"fault": Fault("no_such_fault")}, Person), ({"fault": Fault("gpu_memory")}, Person),
        ({"others": {"a": {"rack": "r2"}}}, Act), ({"others": {key: {} for key in "abcd"}}, Wait),
        ({"closed": "drained by root: NHC"}, Wait), ({"used": "a user"}, Person), ({"paused": "paused by Ada"}, Wait),
        ({"fault": Fault("unreachable"), "reachable": False, "idle": None}, Person),
        ({"fault": Fault("unreachable"), "reachable": False, "bmc": False}, Person),
        ({"fault": Fault("unreachable"), "reachable": False}, Act),
    ],
)  # fmt: skip
def test_what_stops_a_repair(changes: dict[str, object], kind: type) -> None:
    assert isinstance(next_step(dataclasses.replace(READY, **changes), ON, NOW), kind)  # type: ignore[arg-type]


def test_a_wait_for_the_scheduler_says_what_the_scheduler_said() -> None:
    why = "whether it is in use is not known: slurmctld does not answer"
    assert next_step(dataclasses.replace(READY, idle=False, allocated=why), ON, NOW) == Wait(why)


FAULTS = st.builds(
    Fault, st.sampled_from([each.fault for each in ON.ladders]), st.sampled_from(["gpu0", "gpu1"]),
    st.sampled_from(["gpu A", "gpu B", ""]),
)  # fmt: skip
ATTEMPTS = st.builds(
    tried, st.sampled_from([str(each) for each in Rung if each.automatic]), st.floats(0, 14),
    st.sampled_from(Outcome), FAULTS,
)  # fmt: skip
SITUATIONS = st.builds(
    dataclasses.replace, st.just(READY), fault=FAULTS, history=st.lists(ATTEMPTS, max_size=4), bmc=st.booleans(),
)  # fmt: skip
"""Around those in which a repair is carried out: nothing but the fault and its history stops it."""

STOPS: list[dict[str, object]] = [
    {"idle": False}, {"idle": None}, {"leased": False}, {"shadow": True}, {"used": "foreign GPU processes: python"},
    {"closed": "drained by root: NHC"},
    {"paused": "paused by Ada"}, {"reachable": False}, {"simulated": True}, {"labels": {}},
    {"labels": {"repair": "auto", "repair_owner": "jira"}}, {"others": {key: {} for key in "abcd"}},
    {"history": None}, {"history": [tried("reset_gpu", 9, None)]},
    {"history": [tried(str(rung), fault=Fault("gpu_memory", "gpu9")) for rung in (Rung.RESET_GPU, Rung.REBOOT)]},
]  # fmt: skip


@guarded("repaired")
@examples(30)
@given(SITUATIONS)
def test_no_situation_repairs_a_node_in_use_or_beyond_what_its_history_allows(drawn: Situation) -> None:
    again = [{"history": [tried(rung, fault=drawn.fault)]} for rung in ("reset_gpu", "reboot", "power_cycle")]
    for stop in ({}, *again, *STOPS):
        now = dataclasses.replace(drawn, **stop)  # type: ignore[arg-type]
        found = next_step(now, ON, NOW)
        if not isinstance(found, Act):
            continue
        reached("repaired")
        assert now.idle is True
        assert now.leased
        assert not now.closed
        assert now.reachable or found.rung is Rung.POWER_CYCLE
        assert not now.simulated or found.rung is Rung.RESET_GPU, "a command would concern the machine below"
        assert not now.shadow
        assert not now.paused
        assert "repair_owner" not in now.labels, "two hands on one node"
        assert not now.used
        assert len(now.others) < ON.together.fleet
        assert now.history is not None, "what cannot be read resets no budget"
        assert all(each.ended_at for each in now.history)
        assert found.rung in ON.allowed(now.labels)
        counted = [
            each for each in now.history if counts(each) and NOW - each.reserved_at <= datetime.timedelta(days=7)
        ]  # fmt: skip
        assert len(counted) < ON.repairs_max
        same = [each for each in counted if each.fault == now.fault]
        assert all(Rung(each.rung).rank < found.rung.rank for each in same), "no rung is tried twice"
        assert sum(Rung(each.rung) in RESTARTS for each in same) < ON.restarts_max


@examples(30)
@given(SITUATIONS, st.data())
def test_forgetting_never_helps_where_the_history_cannot_be_read(now: Situation, data: st.DataObject) -> None:
    """Whatever is lost of a history that is known to be unreadable, nothing is carried out."""
    assert not isinstance(next_step(dataclasses.replace(now, history=None), ON, NOW), Act)
    history = data.draw(st.lists(ATTEMPTS, min_size=1, max_size=4))
    unclear = [dataclasses.replace(each, outcome=Outcome.PERMANENT, ended_at=NOW) for each in history]
    clear = [dataclasses.replace(each, outcome=Outcome.SUCCEEDED) for each in unclear]
    known = dataclasses.replace(now, history=clear)
    assert next_step(dataclasses.replace(now, history=unclear), ON, NOW) == next_step(known, ON, NOW)


VERDICTS = st.builds(
    StageVerdict, st.sampled_from(STAGES), st.sampled_from([*LEVELS, "unknown"]), st.sampled_from(list(Verdict)),
    st.booleans(), st.just(""), st.sampled_from([NOW, NOW + datetime.timedelta(hours=1)]), st.just("d"), st.just("r"),
)  # fmt: skip


WEAKENED: list[dict[str, object]] = [
    {"verdict": Verdict.WARN}, {"full_coverage": False}, {"level": "short"}, {"level": "unknown"}, {"stage": "thermal"},
]  # fmt: skip


@examples(30)
@given(
    st.sampled_from(ON.ladders), st.sampled_from(LEVELS), st.integers(-3, 1),
    st.lists(st.tuples(st.integers(1, 9), VERDICTS), max_size=3),
)  # fmt: skip
def test_only_later_tests_that_can_see_the_fault_prove_a_repair_whatever_the_clocks(
    ladder: Ladder, level: str, hours: int, more: list[tuple[int, StageVerdict]]
) -> None:
    incident = Incident(1, "n", FAULT, "", NOW, False, ladder.prove, ladder.level)
    at = NOW + datetime.timedelta(hours=hours)
    passed = [
        (number, StageVerdict(stage, level, Verdict.PASS, True, "", at, "d", "r"))
        for number, stage in enumerate(ladder.prove, 6)
    ]
    for place, (number, one) in enumerate(passed):
        others = [*passed[:place], *passed[place + 1 :], *more]
        weakened = [(number, dataclasses.replace(one, **change)) for change in WEAKENED]  # type: ignore[arg-type]
        for each in ((number, one), (5, one), *weakened):
            verdicts = [each, *others]
            assert proved(incident, verdicts, 5) == all(
                any(
                    test.stage == stage and test.verdict is Verdict.PASS and test.full_coverage and after > 5
                    and test.level in LEVELS[LEVELS.index(ladder.level):]
                    for after, test in verdicts
                )
                for stage in ladder.prove
            )  # fmt: skip


def test_the_tests_after_a_repair_prove_it_and_those_before_do_not() -> None:
    ladder = ON.ladders[0]
    incident = Incident(1, "n", FAULT, "", NOW, False, ladder.prove, ladder.level)
    passed = [
        (number, StageVerdict(each, "standard", Verdict.PASS, True, "", NOW, "d", "r"))
        for number, each in enumerate(ladder.prove, 6)
    ]
    assert proved(incident, passed, 5)
    assert not proved(incident, passed, 6), "the repair ended after the first of them"
    for nothing in ({"prove": ()}, {"level": ""}, {"prove": (), "level": ""}):
        assert not proved(dataclasses.replace(incident, **nothing), passed, 5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rungs: [rma]", "rungs: [reboot]"),
        ("rungs: [reset_gpu, reboot, rma]", "rungs: [reboot, reset_gpu, rma]"),
        ("fault: gpu_lost", "fault: gpu_memory"),
        ("enabled: []", "enabled: [{label: a, value: b, rungs: [rma]}]"),
        ("source: gpud", "source: nobody"),
        ("prove: [intake, burn_in]", "prove: []"),
        ("restarts_max: 2", "restarts_max: 0"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(BadPolicy, match=r"^repair\.yaml: "):
        policy_file.parse(RepairPolicy, TEXT.replace(old, new, 1).encode(), "repair.yaml")


def test_of_several_groups_counts_what_all_of_them_allow() -> None:
    more = (
        "enabled: [{label: repair, value: auto, rungs: [reset_gpu, reboot]}, {label: pool, value: a, rungs: [reboot]}]"
    )
    policy = policy_file.parse(RepairPolicy, TEXT.replace("enabled: []", more).encode(), "repair.yaml")
    assert policy.allowed({"repair": "auto", "pool": "a"}) == {Rung.REBOOT}
    assert policy.allowed({}) == frozenset()
