"""The end of the demo on screen: what Muster found and why, and what the examiner says of it."""

from __future__ import annotations

import email
import email.policy
import pathlib
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster.demo.scoring import Mail, Score, critical_findings
from muster.demo.table import STYLES
from muster_reports.model import RunReport


def read_mails(folder: pathlib.Path) -> list[Mail]:
    """The mails in the sink."""
    mails = []
    for path in sorted(folder.glob("*.eml")):
        message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
        body = message.get_body(("plain",))
        mails.append(Mail(str(message["Subject"]), str(body.get_content()) if body is not None else ""))
    return mails


def build_verdicts(reports: Sequence[RunReport]) -> Table:
    """One row a node: verdict, where it went, and each finding that failed it, in its own words."""
    table = Table(title="What Muster says", title_justify="left", title_style="bold", show_lines=True)
    for column in ("node", "hardware", "verdict", "now"):
        table.add_column(column, no_wrap=True)
    table.add_column("why", overflow="fold")
    for report in reports:
        findings = critical_findings(report)
        why = "\n".join(dict.fromkeys(finding.summary for finding in findings)) or report.headline
        table.add_row(
            report.node,
            f"{report.sku}, {'simulated' if report.simulated else 'real'}",
            Text(report.verdict.value, STYLES.get(report.verdict.value, "")),
            Text(report.state_after, STYLES.get(report.state_after, "")),
            Text(why),
        )
    return table


def show_verdicts(console: Console, reports: Sequence[RunReport]) -> None:
    """Print the verdict table."""
    console.print()
    console.print(build_verdicts(reports))


def show_score(console: Console, result: Score) -> None:
    """Print every check that failed, or that all of them hold."""
    wrong = [check for check in result.checks if not check.ok]
    console.print()
    if not wrong:
        console.print(
            f"[bold green]All {len(result.checks)} checks hold:[/] every planted fault was found on the right GPU for "
            "the right reason, and nothing else was failed."
        )
        return
    console.print(f"[bold red]{len(wrong)} of {len(result.checks)} checks do not hold:[/]")
    for check in wrong:
        console.print(Text(f"  {check.sentence}"), soft_wrap=True)
