"""The claim rule: a run that would bypass its node's pool holds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import records
from muster.lifecycle.transitions import State
from muster.operators import admission, held, qualification, revalidation
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")

NODE = "gpu-0001"


def serving() -> None:
    fleet.qualify()
    records.move_node(NODE, State.PRODUCTION, "Ada", "needed now")


@pytest.mark.parametrize(
    ("claim", "prepare"), [(qualification.claim, lambda: None), (revalidation.claim, serving)], ids=["new", "serving"]
)
@pytest.mark.parametrize(("pool", "taken"), [(None, False), ("", False), ("rack-8", False), ("rack-7", True)])
def test_a_run_outside_its_nodes_pool_is_refused(
    claim: Callable[..., Any], prepare: Callable[[], None], pool: str | None, taken: bool
) -> None:
    """The pool bounds a rack's watts, and the policy sees the run's conf only."""
    records.add_node(fleet.new_node(NODE, pool="rack-7"))
    prepare()
    params = {"node": NODE, "level": "demo", "reason": "x", "pool": pool}
    if taken:
        assert claim("node_qualification", "run", params)["node"] == NODE
    else:
        with pytest.raises(AirflowFailException, match="rack-7"):
            claim("node_qualification", "run", params)
    assert [lease.node for lease in records.live_leases()] == ([NODE] if taken else [])


def test_a_retest_is_started_in_the_nodes_pool() -> None:
    """By the admission DAG, whose runs have no pool of their own."""
    records.add_node(fleet.new_node(NODE, pool="rack-7"))
    fleet.qualify()
    assert admission.look(NODE)["pool"] == "rack-7"
    assert "pool" in admission.retest("node_qualification").conf


@pytest.mark.parametrize(
    "task",
    [
        lambda: qualification.claim("node_qualification", "run", {"node": "none", "level": "demo", "reason": "x"}),
        lambda: revalidation.claim("node_revalidation", "run", {"node": "none", "level": "demo", "reason": "x"}),
        lambda: admission.look("none"),
        lambda: held.look("none"),
    ],
    ids=["qualify", "revalidate", "admission", "held"],
)
def test_an_unknown_node_is_one_sentence_in_the_log_without_its_causes(
    task: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Airflow itself logs a traceback of every failed task, each cause included."""
    with pytest.raises(AirflowFailException) as refused:
        task()
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    logged = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert logged == [str(refused.value)]
