"""What a repair tells people, on the bench of ``repairs``."""

from __future__ import annotations

import dataclasses

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.admission.backend import VERIFY, Seen
from muster.model.attention import Cause, Turn
from muster.model.repairs import Outcome
from muster.operators.lifecycle import repair
from muster.remote import repairing
from muster.remote.repairing import Done
from tests.muster.operators.lifecycle.repairs import KEY, Bench, act, begun, by_themselves

pytestmark = pytest.mark.needs_sshd


def test_the_same_outcome_twice_in_one_day_is_two_mails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    monkeypatch.setattr(repairing, "carry_out", lambda *_, **__: Done(Outcome.TRANSIENT, "sudo refused it"))
    incident = begun()
    for _ in range(2):
        with pytest.raises(AirflowFailException):
            act(bench, incident)
    assert len(store.outbox.pending()) == 2


def test_a_repair_that_waits_until_another_opens_its_node_is_a_question_and_goes_on_then(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NHC lifts its drain once its check passes, which it does after the repair."""
    by_themselves(bench)
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    incident = begun()
    repair.release(KEY)
    seen = Seen(False, foreign="drained by root: NHC: check_nvsmi")
    monkeypatch.setattr(repair.service, "look", lambda names: dict.fromkeys(names, seen))
    for _ in range(3):
        assert repair.wanted() == []
    (shown,) = store.attention.collect()
    assert (shown.cause, shown.turn) == (Cause.QUARANTINE, Turn.PERSON)
    assert all(each in shown.why for each in (seen.foreign, VERIFY))
    assert len(store.outbox.pending()) == 1
    asked = [each for each in store.nodes.events("this-node") if f"incident {incident} waits" in each.reason]
    assert len(asked) == 1
    seen = dataclasses.replace(seen, foreign=f"{seen.foreign} {VERIFY}")
    assert len(repair.wanted()) == 1
    with monkeypatch.context() as full:
        full.setattr(store.repairs, "under_way", lambda _: {f"n{number}": {} for number in range(4)})
        assert repair.wanted() == []
    (shown,) = store.attention.collect()
    assert (shown.cause, shown.turn) == (Cause.WAITS_FOR_REPAIR, Turn.MUSTER)


def test_a_repair_that_a_person_ordered_is_begun_on_what_another_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(False, foreign="drained by root: NHC: check_nvsmi")
    monkeypatch.setattr(repair.service, "look", lambda names: dict.fromkeys(names, seen))
    assert act(bench, begun())["rung"] == "reset_gpu"
