"""The wording of what the DAGs' tasks ask and refuse: one snapshot, renewed by ``make wording``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException
from syrupy.assertion import SnapshotAssertion

from muster import store
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import admission, arrival, held, revalidation
from muster.operators.testing import block, qualification
from tests.dags.test_admission import (  # noqa: F401 - a fixture
    answer,
    given,
    waiting,
)
from tests.dags.test_held_verdict import failed_node, tripped  # noqa: F401 - fixtures
from tests.dags.test_new_hardware import KEY, LINE, WRONG, host_key, never
from tests.muster import fleet as values
from tests.support import lives

DATED = re.compile(r"since 20[-\d]+ [:\d]+")


def ended(call: Callable[..., object], *args: Any) -> str:
    """The class and the sentence with which a task ends."""
    with pytest.raises(AirflowException) as end:
        call(*args)
    return DATED.sub("since THEN", f"{type(end.value).__name__}: {end.value}")


def test_wording_of_arrivals(fleet: Path, snapshot: SnapshotAssertion) -> None:
    sentences = [ended(arrival.receive, key, extras, never) for key, extras in WRONG]
    sentences.append(ended(arrival.receive, KEY, [{"inventory": LINE}], lambda run_id: True))
    store.nodes.add(NewNode("gpu-0001", "10.0.0.1", host_key("another"), "h100-sxm-8"))
    sentences.append(ended(arrival.receive, KEY, [{"inventory": LINE}], never))
    assert "\n".join(sentences) == snapshot


@pytest.mark.usefixtures("waiting")
def test_wording_of_admissions(snapshot: SnapshotAssertion) -> None:
    sentences = [admission.look("n1")["body"]]
    sentences.append(admission.unanswered("n1", RunKey("admission", "r"), whether="enters production"))
    store.leases.acquire("n1", RunKey("node_qualification", "n1__other"))
    sentences.append(ended(given, answer()))
    store.leases.release(RunKey("node_qualification", "n1__other"), "over")
    store.nodes.move("n1", State.QUARANTINE, lives.PERSON, "it smokes")
    sentences.append(ended(admission.look, "n1"))
    assert "\n".join(sentences) == snapshot


def test_wording_of_held_verdicts(failed_node: str, snapshot: SnapshotAssertion) -> None:  # noqa: F811 - a fixture
    sentences = [held.look("n1")["body"]]
    store.withdrawals.keep_in_service("n1", "Ada", "a bad driver")
    sentences.append(ended(held.look, "n1"))
    assert "\n".join(sentences) == snapshot


def test_wording_of_claims(fleet: Path, snapshot: SnapshotAssertion) -> None:
    for name in ("n1", "n2"):
        store.nodes.add(values.new_node(name))
    params = {"level": "demo", "reason": "x"}
    blocks: list[dict[str, Any]] = [
        {"nodes": ["n1"]}, {"nodes": ["n1", "n1"]}, {"nodes": ["n1", "nobody"]}, {"nodes": ["n1", "n2"]},
        {"nodes": ["n1", "n2"], "level": "quick"},
    ]  # fmt: skip
    sentences = [ended(block.claim, RunKey("cluster_qualification", "r"), params | each) for each in blocks]
    store.leases.acquire("n1", RunKey("node_revalidation", "first"))
    sentences.append(ended(revalidation.claim, RunKey("node_revalidation", "second"), params | {"node": "n1"}))
    sentences.append(ended(qualification.claim, RunKey("node_qualification", "second"), params | {"node": "n1"}))
    assert "\n".join(sentences) == snapshot
