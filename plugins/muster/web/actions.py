"""What a person changes from a node's page: previewed first, then recorded under that person's login in Airflow."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from fastapi import Form, HTTPException, Request

from muster import acting, store
from muster.admission import entry
from muster.errors import MusterError
from muster.model import dags
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.model.states import State
from muster.rules.preview import risks_of_move, risks_of_pause
from muster.rules.transitions import person_moves
from muster.web.access import allowed

"""Who may start runs of this DAG, may decide about nodes."""
decide = requires_access_dag("POST", DagAccessEntity.RUN, dags.ADMISSION)
WAIVER_DAYS = 30


def may_decide(user: GetUserDep) -> bool:
    """Whether the viewer may decide about nodes."""
    return allowed(user, "POST", DagAccessEntity.RUN, dags.ADMISSION)


def from_this_page(request: Request) -> None:
    """Refuse what another site's page sends: browsers name the page's origin with each form. Raises HTTPException.

    Behind a proxy that passes another Host on, the page's origin is the address that Airflow is configured with.
    """
    origin = urllib.parse.urlsplit(request.headers.get("origin", ""))
    public = urllib.parse.urlsplit(conf.get("api", "base_url", fallback=""))
    # A page in the clear is another origin than one over TLS, of the same host too: a program in between may have
    # written it.
    in_the_clear = origin.scheme != "https" and "https" in (request.url.scheme, public.scheme)
    ours = origin[:2] == public[:2] or (origin.netloc == request.headers.get("host", "") and not in_the_clear)
    if not origin.netloc or not ours:
        raise HTTPException(403, "this form was not sent by the Fleet page: open the node's page and try again")


def moves(node: Node) -> list[State]:
    """The states into which a person may move the node."""
    return person_moves(node.state)


class Change:
    """One change, as the form describes it: ``preview`` says what it would do and risks, ``apply`` does it."""

    def __init__(
        self,
        name: str,
        user: GetUserDep,
        what: Annotated[str, Form(max_length=20)],
        reason: Annotated[str, Form(max_length=500)] = "",
        state: Annotated[str, Form(max_length=40)] = "",
        finding: Annotated[str, Form(max_length=40)] = "",
        until: Annotated[str, Form(max_length=10)] = "",
        held: Annotated[str, Form(max_length=600)] = "",
    ) -> None:
        self.node, self.what, self.reason = name, what, reason.strip()
        self.state, self.finding, self.until, self.held = state, finding, until, held
        self.person = user.get_name()
        self.path = f"/node/{urllib.parse.quote(name)}"
        self.fields = {"what": what, "reason": self.reason, "state": state, "finding": finding, "until": until}
        self.fields["held"] = held

    def preview(self) -> tuple[str, list[str]]:
        """Returns (what would happen, its risks); nothing changes. Raises MusterError, as ``apply`` would."""
        before, lease = store.nodes.get(self.node), store.leases.get(self.node)
        with self._login(), store.engine.rehearsal():
            sentence = self._carry_out(dry_run=True)
        risks = []
        if self.what == "move":
            after = State(self.state)
            risks += [*risks_of_move(before.state, after, shadow=before.shadow), *entry.effects(before, after)]
        if self.what == "waive":
            risks.append("the finding no longer fails a test until then, however bad it gets")
        if self.what == "keep":
            risks.append("its findings stay open, and no decision about them is requested again")
        if self.what == "pause":
            risks += risks_of_pause(before.state, lease.run_id if lease else "")
        if self.what == "lemon":
            risks.append("its state stays; once out of production, it enters it by a person's decision alone")
        if self.what == "verify":
            risks.append("it was never proven, and a FAIL will withdraw it from production")
        return sentence, risks

    def apply(self) -> str:
        """Make the change under the viewer's login; returns what happened. Raises MusterError."""
        with self._login():
            return self._carry_out(dry_run=False)

    @contextmanager
    def _login(self) -> Iterator[None]:
        with acting.under(acting.airflow_login(self.person)):
            yield

    def _carry_out(self, *, dry_run: bool) -> str:
        if not self.reason:
            raise MusterError("give a reason: it stays in the node's history")
        done = CHANGES.get(self.what)
        if done is None:
            raise MusterError(f"there is no change {self.what!r}: choose one of {', '.join(CHANGES)}")
        return done(self, dry_run)

    def _move(self, dry_run: bool) -> str:
        try:
            to = State(self.state)
        except ValueError:
            raise MusterError(f"there is no state {self.state!r}") from None
        moved = entry.move(self.node, to, self.person, self.reason, dry_run=dry_run)
        return f"{moved.name}: {to}"

    def _waive(self, dry_run: bool) -> str:
        end = store.waivers.end_of(self.until)
        if self.finding not in {each.finding.id for each in store.verdicts.open_findings(self.node)}:
            raise MusterError(f"{self.node} has no open finding {self.finding!r}")
        waiver = store.waivers.give(self.finding, end, self.person, self.reason)
        return f"{waiver.rule} of {waiver.metric} is waived {waiver}; test the node again"

    def _keep(self, dry_run: bool) -> str:
        held = RunKey.parse(self.held)
        if held is None:
            raise MusterError("the form names no held verdict: open the node's page again")
        kept = store.withdrawals.keep_in_service(self.node, self.person, self.reason, held=held)
        return f"{kept.name} stays in {kept.state}"

    def _pause(self, dry_run: bool) -> str:
        paused = store.pauses.pause(self.node, store.waivers.end_of(self.until), self.person, self.reason)
        return f"{paused.name}: its tests are {paused.pause}"

    def _resume(self, dry_run: bool) -> str:
        return f"{store.pauses.resume(self.node, self.person, self.reason).name}: its pause is over"

    def _lemon(self, dry_run: bool) -> str:
        marked = store.lemons.mark(self.node, self.person, self.reason)
        return f"{marked.name} is {marked.lemon}"

    def _unmark(self, dry_run: bool) -> str:
        return f"{store.lemons.clear(self.node, self.person, self.reason).name} is no lemon any more"

    def _verify(self, dry_run: bool) -> str:
        return f"{self.node}: {store.adoption.verify(self.node, self.person, self.reason)}"


CHANGES: dict[str, Callable[[Change, bool], str]] = {
    "move": Change._move,
    "waive": Change._waive,
    "keep": Change._keep,
    "pause": Change._pause,
    "resume": Change._resume,
    "verify": Change._verify,
    "lemon": Change._lemon,
    "unmark": Change._unmark,
}
