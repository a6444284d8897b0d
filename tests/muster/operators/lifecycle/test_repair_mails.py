"""What a repair tells people, on the bench of ``repairs``."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.model.repairs import Outcome
from muster.remote import repairing
from muster.remote.repairing import Done
from tests.muster.operators.lifecycle.repairs import Bench, act, begun

pytestmark = pytest.mark.needs_sshd


def test_the_same_outcome_twice_in_one_day_is_two_mails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "fleet@example.org")
    monkeypatch.setattr(repairing, "carry_out", lambda *_, **__: Done(Outcome.TRANSIENT, "sudo refused it"))
    incident = begun()
    for _ in range(2):
        with pytest.raises(AirflowFailException):
            act(bench, incident)
    assert len(store.outbox.pending()) == 2
