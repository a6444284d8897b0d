"""Which evidence lets a repair go on, on the bench of ``repairs``."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowSkipException

from muster import store
from muster.model.repairs import NOTHING_READ, Bundle
from muster.operators.lifecycle import repair
from tests.muster.operators.lifecycle.repairs import FAULT, KEY, Bench, act

pytestmark = pytest.mark.needs_sshd


def test_a_node_of_whose_evidence_nothing_was_read_is_reset_by_no_program(bench: Bench) -> None:
    incident = repair.claim(KEY, FAULT)
    store.repairs.keep_bundle(incident, Bundle("/archive/bundle", "ab" * 32, 100, (NOTHING_READ,)))
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []
    assert store.repairs.get_incident(incident).asks
