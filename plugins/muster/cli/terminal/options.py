"""Arguments and options that several commands share."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from muster.errors import MusterError

Name = Annotated[str, typer.Argument(help="The node's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table or sentences.")]
AsWho = Annotated[str, typer.Option("--as", help="Who decides; default: MUSTER_PERSON, else your login name.")]
OfNode = Annotated[str, typer.Option("--node", help="Which node, if the run tests several.")]
Reason = Annotated[str, typer.Option(help="Why; it stays in the node's history.")]


def given(reason: str) -> str:
    """The reason, stripped. Raises MusterError if it is empty."""
    if not reason.strip():
        raise MusterError("a decision needs a reason: --reason 'why'")
    return reason.strip()


def utc(moment: datetime.datetime) -> datetime.datetime:
    """The moment of an option: what was written without a zone is UTC."""
    return moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment.astimezone(datetime.UTC)
