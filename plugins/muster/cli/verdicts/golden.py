"""``muster golden``: the bits on which the fleet agreed."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson, AsWho, Reason, given
from muster.model.statistics import KeptGolden

app = typer.Typer()

_SHOWN = 12


@app.command("list")
def list_(
    withdrawn: Annotated[bool, typer.Option("--withdrawn", help="Show withdrawn ones too.")] = False,
    json: AsJson = False,
) -> None:
    """List every operation of which digests were seen, and whether there is a golden for it. --json shows the keys."""
    from muster import store

    goldens = store.goldens.find(withdrawn=withdrawn)
    show.answer(
        goldens,
        ["golden", "operation", "digest", "", "since", ""],
        (
            [each.id, each.op, each.digest[:_SHOWN] or "–", _state(each),
             show.when(each.promoted_at) if each.promoted_at else "", "simulated" if each.simulated else ""]
            for each in goldens
        ),
        json=json, empty="no digests yet: the integrity stage of GPU nodes gives them, from level short on",
    )  # fmt: skip


@app.command("withdraw")
@messages
def withdraw(
    golden: Annotated[str, typer.Argument(help="The golden's id, as `muster golden list` gives it.")],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """End a golden, or forget the digests seen where there is none yet: devices have to agree again.

    Devices that are suspects by this golden alone are none any more; recorded verdicts stay.
    """
    from muster import store

    with rehearsed(dry_run):
        ended, cleared = store.goldens.withdraw(golden, show.person(who), given(reason))
        what = f"of {ended.op} ({ended.digest[:_SHOWN] or 'never promoted'})"
        typer.echo(f"{golden} {what} {'would be' if dry_run else 'is'} withdrawn")
        for part in cleared:
            typer.echo(f"{part} {'would be' if dry_run else 'is'} no suspect any more")
        if dry_run:
            risks(golden, ["until devices agree again, only repeats and siblings show which device is wrong"])


def _state(each: KeptGolden) -> str:
    if each.withdrawn_at is not None:
        return f"withdrawn by {each.withdrawn_by} on {show.when(each.withdrawn_at)}: {each.withdrawn_reason}"
    return each.why_not or f"golden of {each.devices} devices on {each.nodes} nodes"
