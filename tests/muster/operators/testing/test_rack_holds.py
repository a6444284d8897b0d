"""A rack that is one NVLink domain: held once by a block, refused while it is held, released by a named person."""

from __future__ import annotations

import dataclasses
import shlex

import pytest

from muster import store
from muster.admission.startable import together
from muster.errors import MusterError, NoPerson, UnknownRack
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.testing import block, qualification
from muster_criteria.cluster import judge
from muster_criteria.cluster.model import ClusterJudgement
from muster_criteria.cluster.rack import RackState, Trouble
from muster_criteria.model import Verdict
from tests.docs.test_pages import commands
from tests.muster import copied, fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")

NAMES = [f"tray-{number:02}" for number in range(18)]
RUN, NEXT = (RunKey("cluster_qualification", name) for name in ("block", "next"))
PARAMS = {"nodes": NAMES, "level": "short", "reason": "x"}
STATE = RackState("r1", tuple(NAMES), ((Trouble.IMEX, "IMEX is not up on 18 of 18 nodes"),), held=tuple(NAMES))


@pytest.fixture
def ill(sqlite_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eighteen qualified trays of rack r1, whose block finds what STATE says."""
    real = judge.judge_block

    def judged(*given: object, **keys: object) -> ClusterJudgement:
        found = real(*given, **keys)  # type: ignore[arg-type]
        # Members of this test send no result; what is tested here begins with the judgement.
        return dataclasses.replace(found, racks=(STATE,), missing=())

    monkeypatch.setattr(judge, "judge_block", judged)
    copied.records(_trays)


def _trays() -> None:
    for name in NAMES:
        store.nodes.add(dataclasses.replace(fleet.new_node(name), rack="r1"))
        fleet.qualify(name)


@pytest.mark.usefixtures("ill")
def test_a_rack_needs_one_person_and_no_tray_is_charged() -> None:
    block.claim(RUN, PARAMS)
    block.judge(RUN)
    (held,) = store.racks.held()
    assert (held.rack, held.codes, held.found_by) == ("r1", ("imex",), RUN)
    block.judge(RUN)
    qualification.release(RUN)
    assert {store.nodes.get(name).state for name in NAMES} == {State.QUALIFIED}
    assert {store.runs.get(RUN, node=name).verdict for name in NAMES} == {Verdict.SKIPPED}
    assert {row.inconclusive for row in store.overview.rows()} == {0}
    assert any("rack r1 is held" in why for why in store.admission.decision(NAMES[0]).reasons)  # type: ignore[union-attr]
    assert len(store.racks.held()) == 1


@pytest.mark.usefixtures("ill")
def test_a_held_rack_is_refused_until_a_named_person_releases_it() -> None:
    block.claim(RUN, PARAMS)
    block.judge(RUN)
    qualification.release(RUN)
    with pytest.raises(MusterError, match="muster racks release r1"):
        block._claim(NEXT, PARAMS, 1, "")
    with pytest.raises(NoPerson):
        store.racks.release("r1", "root", "restarted IMEX")
    store.racks.release("r1", "ada", "restarted IMEX")
    assert store.racks.held() == []
    assert block.claim(NEXT, PARAMS) == NAMES
    with pytest.raises(UnknownRack):
        store.racks.release("r1", "ada", "again")


@pytest.mark.usefixtures("ill")
def test_a_rack_that_is_ill_again_is_held_again() -> None:
    for reason in ("first", "second"):
        assert store.racks.hold(RUN, "r1", ["imex"], "why", NAMES)
        assert not store.racks.hold(NEXT, "r1", ["imex"], "other", NAMES)
        assert store.racks.release("r1", "ada", reason).why == "why"


def test_racks_of_simulated_nodes_are_other_racks() -> None:
    store.nodes.add(dataclasses.replace(fleet.new_node("tray-00"), rack="r1"))
    assert store.racks.hold(RUN, "r1", ["imex"], "why", NAMES, simulated=True)
    assert store.racks.held(simulated=False) == []
    assert not any("held" in why for why in store.admission.decision("tray-00").reasons)  # type: ignore[union-attr]
    assert store.racks.hold(NEXT, "r1", ["imex"], "why", NAMES)
    assert [each.simulated for each in store.racks.held()] == [False, True]
    store.racks.release("r1", "ada", "repaired")
    assert store.racks.held() == []


def test_the_command_that_a_refused_block_names_releases_a_rack_with_a_blank_in_its_name() -> None:
    trays = NAMES[:2]
    for name in trays:
        store.nodes.add(dataclasses.replace(fleet.new_node(name), rack="Rack 12"))
        fleet.qualify(name)
    store.racks.hold(RUN, "Rack 12", ["imex"], "why", NAMES)
    with pytest.raises(MusterError) as refused:
        together([store.nodes.get(name) for name in trays])
    (line,) = commands(str(refused.value))
    assert shlex.split(line)[:4] == ["muster", "racks", "release", "Rack 12"]
