"""``muster admit``: ask whether nodes may enter production."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from muster.cli.airflow.start import Nodes, Wanted, known, start
from muster.cli.terminal import dry
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError
from muster.integration.runid import run_id
from muster.model.dags import ADMISSION
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster_criteria.stages import LEVELS


def admit(
    nodes: Nodes,
    reason: Annotated[
        str, typer.Option(help="Why; the same node is asked about once for the same reason.")
    ] = "by hand",
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """Ask about nodes that do not enter production by themselves; `muster approve` answers."""
    wanted = []
    for node in known(nodes, LEVELS[0]).values():
        conf = {"node": node.name, "reason": reason}
        run = run_id(node.name, reason)
        wanted.append(Wanted(ADMISSION, node.name, run, conf, functools.partial(_askable, node, run)))
    start(wanted, False, json, dry_run)


def _askable(node: Node, run: str) -> dry.Would:
    """Returns what the run would do. Raises MusterError if it is answered already, or if the gate refuses the node or
    needs no person's decision.
    """
    from muster import store
    from muster.model.states import State
    from muster.rules.lifecycle.gate import Admit, Refuse

    asked = store.questions.find(RunKey(ADMISSION, run))
    if asked is not None and asked.answered_at is not None:
        raise MusterError(f"run {run} exists already: give another reason for another run")
    decision = store.admission.decision(node.name)
    if isinstance(decision, Refuse):
        raise MusterError(f"it does not enter production: {'; '.join(decision.reasons)}")
    if isinstance(decision, Admit) and node.state is State.PRODUCTION:
        raise MusterError("it is in production already")
    reasons = ["nothing stands against it"] if isinstance(decision, Admit) else decision.reasons
    return dry.Would((f"would ask a person: {'; '.join(reasons)}",))
