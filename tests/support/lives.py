"""Records that put a node into the state a test begins with: qualified by a run, or in production by a person."""

from __future__ import annotations

from muster import store
from muster.judging import verdict
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster_criteria.model import Coverage, Judgement, Verdict

PERSON = "Petra"


def qualified(name: str, level: str = "demo") -> None:
    """An enrolled node goes through node_qualification with a full-coverage PASS of every stage."""
    run = RunKey("node_qualification", f"{name}__earlier")
    node = store.nodes.get(name)
    store.leases.acquire(name, run)
    store.runs.begin(run, name, level, "earlier")
    for stage in STAGES:
        store.runs.begin_stage(run, stage)
        judgement = Judgement(
            stage, level, Verdict.PASS, "by decree", Coverage(1, 1, 1), (), (), node.simulated, node.sku, "1"
        )
        verdict.record(run, judgement, store.stages.Sent())
    store.runs.finish(run, Verdict.PASS, "by decree")
    store.leases.release(run, "over")


def in_production(name: str, level: str = "demo") -> None:
    """The node is qualified, and a person takes it into production."""
    qualified(name, level)
    store.nodes.move(name, State.PRODUCTION, PERSON, "a test begins here")
