"""``muster waive``: accept a finding until a date."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, decided
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsWho, Reason, given


@messages
def waive(
    finding: Annotated[str, typer.Argument(help="The finding's id, as reports and `muster runs show` give it.")],
    until: Annotated[str, typer.Option(help="The last day (YYYY-MM-DD, UTC) on which it holds.")],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Accept a finding until a date: from the next test on it does not fail a stage, and every report shows the waiver.

    A stage with a waived critical finding is at best WARN, so a named person must approve the node for production.
    What is found later and is clearly worse, or another, fails again.
    """
    from muster.admission import changes

    decided(finding, lambda: changes.waive(finding, until, show.person(who), given(reason)), dry_run)
