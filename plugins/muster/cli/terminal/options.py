"""Arguments and options that several commands share."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from muster.errors import MusterError, of_sku_files
from muster.settings import settings
from muster_criteria.text import one_line

Name = Annotated[str, typer.Argument(help="The node's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table or sentences.")]
AsWho = Annotated[str, typer.Option("--as", help="Who decides; default: MUSTER_PERSON, else your login name.")]
OfNode = Annotated[str, typer.Option("--node", help="Which node, if the run tests several.")]
Reason = Annotated[str, typer.Option(help="Why; it stays in the node's history.")]

ROWS_MAX = 2**63 - 1
"""The largest number of a record, or of records: the databases store no larger one."""
YEARS = (1970, 9000)
"""The years allowed in an option's moment: beyond them, Python cannot compute dates before or after it."""


def given(reason: str) -> str:
    """The reason on one line, as rows of tables show it. Raises MusterError if it is empty."""
    if not (said := one_line(reason).strip()):
        raise MusterError("a decision needs a reason: --reason 'why'")
    return said


def check_sku(name: str) -> None:
    """Raises MusterError, with the names that there are, where no SKU file has this one."""
    from muster_criteria.sku_files.skus import find_sku

    with of_sku_files():
        find_sku(name, settings().sku_folders)


def utc(moment: datetime.datetime) -> datetime.datetime:
    """Returns an option's moment in UTC, also if written without a zone. Raises MusterError outside ``YEARS``."""
    if not YEARS[0] <= moment.year <= YEARS[1]:
        raise MusterError(f"{moment.isoformat()} cannot be reckoned with: give a moment from {YEARS[0]} to {YEARS[1]}")
    return moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment.astimezone(datetime.UTC)
