"""What a person changes from a node's page: previewed first, then recorded under that person's login in Airflow."""

from __future__ import annotations

import urllib.parse
from contextlib import AbstractContextManager
from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import Form, HTTPException, Request

from muster import acting, store
from muster.admission import changes
from muster.errors import MusterError
from muster.model.runs import RunKey
from muster.model.states import State

WAIVER_DAYS = 30


def from_this_page(request: Request) -> None:
    """Refuse a form sent by another site's page: browsers send the page's origin with each form. Raises HTTPException.

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
        with self._login(), store.engine.rehearsal():
            change = self._carry_out(dry_run=True)
        return f"{self.node}: {change.sentence}", [*change.risks, *change.effects]

    def apply(self) -> None:
        """Make the change under the viewer's login. Raises MusterError."""
        with self._login():
            self._carry_out(dry_run=False)

    def _login(self) -> AbstractContextManager[None]:
        return acting.under(acting.airflow_login(self.person))

    def _carry_out(self, *, dry_run: bool) -> changes.Change:
        who = self.person, self.reason
        if not self.reason:
            raise MusterError("give a reason: it stays in the node's history")
        match self.what:
            case "move":
                if self.state not in list(State):
                    raise MusterError(f"there is no state {self.state!r}")
                return changes.move(self.node, State(self.state), *who, dry_run=dry_run)
            case "waive":
                return changes.waive(self.finding, self.until, *who, of=self.node)
            case "keep":
                held = RunKey.parse(self.held)
                if held is None:
                    raise MusterError("the form names no held verdict: open the node's page again")
                return changes.keep(self.node, held, *who)
            case "pause":
                return changes.pause(self.node, self.until, *who)
        if change := SIMPLE.get(self.what):
            return change(self.node, *who)
        raise MusterError(f"there is no change {self.what!r}: open the node's page again")


SIMPLE = {
    "resume": changes.resume, "verify": changes.verify, "lemon": changes.mark, "unmark": changes.unmark,
}  # fmt: skip
"""Changes that need only a reason."""
