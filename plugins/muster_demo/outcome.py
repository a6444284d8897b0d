"""The end of the demo on screen: the verdicts with their reasons, and the examiner's score."""

from __future__ import annotations

import email
import email.policy
import pathlib
import shlex
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from muster import store
from muster.model import dags
from muster.model.breaker import Breaker
from muster.model.runs import RunKey
from muster.rules.lifecycle.decisions import is_person
from muster_criteria.cluster.acceptance.values import Training
from muster_criteria.cluster.fabric.judging.found import Fabric
from muster_demo.scoring import Aftermath, Mail, Score, Service, critical_findings
from muster_demo.slurm import Slurm
from muster_demo.table import SERVICE, STYLES, production_cell
from muster_reports.model import RunReport


def read_mails(folder: pathlib.Path) -> list[Mail]:
    """The mails of verdicts in the sink; there are notices too, and at six o'clock the fleet's digest."""
    mails = []
    for path in sorted(folder.glob("*.eml")):
        message = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
        if not message["X-Muster-Verdict"]:
            continue
        body = message.get_body(("plain",))
        mails.append(Mail(str(message["Subject"]), str(body.get_content()) if body is not None else ""))
    return mails


def build_verdicts(reports: Sequence[RunReport], services: Mapping[str, Service]) -> Table:
    """One row a node: a cell for each part of its life, its state, and the summaries of the findings that failed it."""
    table = Table(title="Verdicts", title_justify="left", title_style="bold", show_lines=True)
    for column in ("node", "hardware", *SERVICE, "now"):
        table.add_column(column, no_wrap=True)
    table.add_column("why", overflow="fold")
    for report in reports:
        served = services[report.node]
        findings = [finding for each in (report, *served.reports) for finding in critical_findings(each)]
        why = "\n".join(dict.fromkeys(finding.summary for finding in findings)) or report.headline
        cells = cells_of(report, served)
        table.add_row(
            report.node,
            f"{report.sku}, {'simulated' if report.simulated else 'real'}",
            *(Text(cells[column], STYLES.get(cells[column], "")) for column in SERVICE),
            Text(served.state, STYLES.get(served.state, "")),
            Text(why),
        )
    return table


def cells_of(report: RunReport, served: Service) -> dict[str, str]:
    """The cell of each column of ``SERVICE``; "" for what the node did not reach."""
    return {
        "tests": report.verdict.value,
        "cluster": _last(served.validations),
        "production": production_cell(served.entered_by),
        "revalidation": _last(served.revalidations),
    }


def _last(runs: Sequence[RunReport]) -> str:
    return runs[-1].verdict.value if runs else ""


def show_verdicts(console: Console, reports: Sequence[RunReport], services: Mapping[str, Service]) -> None:
    """Print the verdict table."""
    console.print()
    console.print(build_verdicts(reports, services))


def show_breaker(console: Console, breaker: Breaker) -> None:
    """Print the state of the simulated fleet's circuit breaker."""
    console.print(Text(f"Circuit breaker: {breaker.state}: {breaker.sentence}.", "dim"))


def admissions(services: Iterable[Service], actor: str) -> list[str]:
    """A sentence for each node that entered production: who admitted it. ``actor`` is the demo's own login."""
    sentences = []
    for served in services:
        if not served.entered_by:
            continue
        if not is_person(served.entered_by):
            sentences.append(f"{served.node} entered production by itself, on a full-coverage PASS.")
            continue
        reason = next((each.reason for each in served.approvals if each.person == served.entered_by), "")
        whose = " That is the demo answering itself, not a person." if served.entered_by == actor else ""
        sentences.append(f"{served.node} was admitted by {served.entered_by} (“{reason}”).{whose}")
    return sentences


def show_approvals(console: Console, services: Iterable[Service], actor: str) -> None:
    """Print who admitted the nodes to production."""
    console.print()
    for sentence in admissions(services, actor):
        console.print(Text(sentence), soft_wrap=True)


def show_blocks(console: Console, services: Iterable[Service]) -> None:
    """Print the last block of each node, from the records."""
    for run_id in sorted({each.validations[-1].run_id for each in services if each.validations}):
        key = RunKey(dags.CLUSTER_QUALIFICATION, run_id)
        show_block(console, store.rounds.fabric(key), store.trainings.training(key))


def show_block(console: Console, fabric: Fabric | None, training: Training | None) -> None:
    """Print what a block of nodes measured together: each rail from sender to receiver, and the training."""
    for matrix in fabric.matrices if fabric is not None else ():
        rates = {(cell.sender, cell.receiver): "wrong" if cell.wrong else f"{cell.rate:.2f}" for cell in matrix.cells}
        table = Table(
            "from \\ to, Gb/s", *matrix.nodes, title=f"The block's rail {matrix.rail}", title_justify="left", box=None
        )
        for sender in matrix.nodes:
            table.add_row(sender, *(rates.get((sender, receiver), "") for receiver in matrix.nodes))
        console.print()
        console.print(table)
    for part in fabric.parts if fabric is not None else ():
        console.print(Text(f"{part.title}: {part.observed}"), soft_wrap=True)
    if training is None:
        return
    table = Table("what", "measured", "gate", title="The block's training", title_justify="left", box=None)
    for line in (*training.lines, *training.checkpoints):
        table.add_row(line.what, Text(line.value, STYLES["FAIL"] if line.met is False else ""), line.gate)
    console.print()
    console.print(table)
    for sentence in (training.headline, *training.stragglers, *training.not_covered):
        console.print(Text(sentence), soft_wrap=True)


def show_aftermath(console: Console, seen: Aftermath | None) -> None:
    """Print what became of the fault that appeared between tests, if a node was in service to fail."""
    if seen is None:
        return
    proved = "proved by the tests that can see it" if seen.proved else "not proved"
    console.print()
    console.print(Text(f"Between tests (simulated): {seen.fault.node} left service: {seen.left_for}."), soft_wrap=True)
    console.print(Text(f"Its evidence: {seen.evidence or 'none'}"), soft_wrap=True)
    console.print(Text(f"Its repair: {', '.join(seen.repairs) or 'none'}; {proved}."), soft_wrap=True)
    console.print(Text(f"Its place: {seen.replaced_by or 'no node'} took it."), soft_wrap=True)


def show_slurm(console: Console, cluster: Slurm) -> None:
    """Print Slurm's own view of the nodes, and how to ask it."""
    command = ("sinfo", "--Node", "--partition=users", "--format=%18N %10T %E")
    console.print()
    console.print(Text(f"$ SLURM_CONF={cluster.conf} {shlex.join(command)}", "bold"), soft_wrap=True)
    console.print(Text(cluster.call(*command).rstrip()), soft_wrap=True)


def show_score(console: Console, result: Score) -> None:
    """Print the checks that failed, or that all hold."""
    wrong = [check for check in result.checks if not check.ok]
    console.print()
    if not wrong:
        console.print(
            f"[bold green]All {len(result.checks)} checks hold:[/] every planted fault was found on the right GPU for "
            "the right reason, nothing else was failed, a block named its straggler and the GPU that corrupts, and "
            "every healthy simulated node entered service; the one that failed there was found between tests, replaced "
            "by a spare, and repaired.",
            soft_wrap=True,
        )
        return
    console.print(f"[bold red]{len(wrong)} of {len(result.checks)} checks do not hold:[/]")
    for check in wrong:
        console.print(Text(f"  {check.sentence}"), soft_wrap=True)
