"""``POST /v1/repairs``: the answer of an outside system that repairs nodes, by a token of MUSTER_REPORT_SOURCES.

It moves a node that is out of service, and whose label ``repair_owner`` names that system, to repair, to rma, or back
to ``registered``: a named person's decision like any other. Tests prove the repair; nothing here lets a node serve.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from fastapi import BackgroundTasks, Header, HTTPException, Request
from fastapi.concurrency import run_in_threadpool

from muster import acting, store
from muster.admission.service import carry_out
from muster.api import reports
from muster.errors import IllegalMove, NodeLeased, UnknownNode, first_refused
from muster.integration.report_sources import Source
from muster.model.names import OWNER_LABEL
from muster.model.states import BROKEN, State
from muster_criteria.text import one_line


def _line(text: str) -> str:
    if not (line := one_line(text).strip()):
        raise ValueError("give a text")
    return line


class Answer(pydantic.BaseModel):
    """``person``: who repaired it or decided, by name; ``reason``: as "INC-17: gpu3 replaced"."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    node: Annotated[str, pydantic.Field(min_length=1, max_length=200)]
    to: Literal["repair", "rma", "registered"]
    person: Annotated[str, pydantic.Field(max_length=100), pydantic.AfterValidator(_line)]
    reason: Annotated[str, pydantic.Field(max_length=500), pydantic.AfterValidator(_line)]


class Moved(pydantic.BaseModel):
    """The node's state now."""

    node: str
    state: State


async def receive(request: Request, background: BackgroundTasks, authorization: Annotated[str, Header()] = "") -> Moved:
    """Move a node as its owner answers: 403 for a node that is not this source's to repair, 409 for a move that its
    state or the run that holds it refuses; otherwise as ``POST /v1/reports``. The same answer again changes nothing.
    """
    name, source = reports.source_of(authorization)
    if wait := reports.rates.take(name, source.per_minute, 1):
        raise reports.later(wait)
    try:
        answer = Answer.model_validate_json(await reports.body_of(request))
    except pydantic.ValidationError as error:
        raise HTTPException(422, one_line(first_refused(error, whole="the body"))[:200]) from None
    moved = await run_in_threadpool(_move, name, source, answer)
    background.add_task(carry_out, moved.node)  # its scheduler may take minutes
    return moved


def _move(name: str, source: Source, answer: Answer) -> Moved:
    node, reason = answer.node, f"{source.repairs}: {answer.reason}"
    try:
        with acting.under(acting.source_login(name)), store.engine.transaction():
            if not _is_owner(source, node):
                raise HTTPException(403, f"This source does not repair {one_line(node)[:80]!r}.")
            state = store.nodes.get(node).state
            last = next(
                (each for each in reversed(store.nodes.events(node, 100)) if each.from_state != each.to_state), None
            )
            by = (answer.to, answer.person, reason, acting.current())
            if state == answer.to and last and (last.to_state, last.actor, last.reason, last.login) == by:
                return Moved(node=node, state=state)
            if state not in BROKEN:
                raise HTTPException(409, f"{node} is in {state}: only a node that is out of service is repaired.")
            if (lease := store.leases.get(node)) is not None:
                raise HTTPException(409, f"{node} is held by run {lease.run_id}: answer again once it has ended.")
            moved = store.nodes.move(node, State(answer.to), answer.person, reason)
    except (IllegalMove, NodeLeased) as error:
        raise HTTPException(409, str(error)) from None
    return Moved(node=node, state=moved.state)


def _is_owner(source: Source, node: str) -> bool:
    """Whether the source may answer for the node; False for an unknown node, so that both look alike."""
    if not source.repairs or not source.may_report(node):
        return False
    try:
        return store.nodes.get(node).labels.get(OWNER_LABEL, "").strip() == source.repairs
    except UnknownNode:
        return False
