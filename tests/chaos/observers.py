"""From evidence to defects: one pure function a counter, which names what it counts; None where a source is missing."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

from tests.chaos.evidence import Evidence, Line, Quarantined, Sample
from tests.chaos.world import PERSON


@dataclasses.dataclass(frozen=True)
class Count:
    """What was found to be wrong, of so many that were ``examined``: a 0 of nothing says nothing."""

    examined: int
    found: list[str]


Observer = Callable[[Evidence], Count | None]

INCONCLUSIVE, PASS = "INCONCLUSIVE", "PASS"
PREEMPTED = "Preempted: "
MUSTER = ("muster: ", "withdrawn: ")
"""How the reason begins by which Muster closes a node, in Slurm and in Kubernetes."""
BUDGET = "were inconclusive"
"""In the reason of a quarantine after several runs without a verdict, which is no judgement on the hardware."""
REBOOTED = "rebooted by itself"
CLOCK_S = 2.0
"""How long after a person's command a scheduler may show what was before."""
SERVING = ("production", "revalidation")


def results_lost(e: Evidence) -> Count | None:
    """Results that a node completed and that the records do not have, of runs that are over."""
    if e.diary is None or e.jobs is None or e.stages is None or e.runs is None or e.live is None or e.sides is None:
        return None
    recorded = {stage.sha256 for stage in e.stages}
    tampered = {line.job for line in e.diary if line.what == "tampered"}
    preempted = {run.run for run in e.runs if run.headline.startswith(PREEMPTED)}
    gone = tampered | e.forgotten
    own = [x for x in e.diary if x.what == "measured" and x.about not in e.forgotten and x.job not in gone]
    lost = []
    for line in own:
        if line.about in recorded:
            continue
        job = e.jobs.get(line.job)
        if job is None:
            lost.append(f"{line.node}: job {line.job} is not in the records")
        elif job not in e.sides and job.run not in e.touched | preempted | e.live:
            lost.append(f"{line.node}: {job.stage} of {job.run}")
    return Count(len(own), lost)


def false_admissions(e: Evidence) -> Count | None:
    """Faulty machines that the scheduler gave to users, those that failed in service and returned without a repair,
    nodes open at the end that do not serve, and stages that passed by a result that was tampered with. Examined:
    samples of faulty machines, failures in service, nodes open at the end, and stages that passed.
    """
    if e.samples is None or e.shown is None or e.nodes is None or e.diary is None or e.known is None:
        return None
    if e.stages is None or e.jobs is None:
        return None
    wrong = {f"{s.node}: open while its machine is faulty since {_since(e, s):.0f}" for s in e.samples if _gave(e, s)}
    wrong |= {f"{node}: open again, and what failed at {since:.0f} is not repaired" for node, since in _returned(e)}
    opened = [node for node, shown in e.shown.items() if not shown.drained]
    wrong |= {
        f"{node}: open at the end, and {e.nodes[node]} in the records"
        for node in opened
        if e.nodes[node] not in SERVING
    }
    tampered = {line.job for line in e.diary if line.what == "tampered"}
    measured = {line.about for line in e.diary if line.what == "measured" and line.job not in tampered}
    first = _recorded_by_job(e)
    wrong |= {f"{job}: passed by a result that is not its own" for job, sha256 in first if sha256 not in measured}
    faulty = sum(sample.faulty for sample in e.samples)
    return Count(faulty + len(e.worn) + len(opened) + len(first), sorted(wrong))


def _recorded_by_job(e: Evidence) -> set[tuple[str, str]]:
    """(run and stage, hash) of each stage that passed."""
    assert e.stages is not None
    return {(f"{stage.run} {stage.stage}", stage.sha256) for stage in e.stages if stage.verdict == PASS}


def _gave(e: Evidence, sample: Sample) -> bool:
    """Whether users had a faulty machine, but for one that a person let in by records that were restored: they lacked
    that the node was returned for another machine, and said that they had been restored.
    """
    if not sample.faulty or sample.drained:
        return False
    built = _since(e, sample)
    replaced = [at for saved, at in e.restores if saved < built < at]
    return not any(name == sample.node and min(replaced, default=sample.at) < at < sample.at for name, at in e.let_in)


def _since(e: Evidence, sample: Sample) -> float:
    return max(at for at, _ in e.machines[sample.node] if at <= sample.at)


def _returned(e: Evidence) -> list[tuple[str, float]]:
    """Each (node, when it began to fail in service) that Muster knew to fail and had closed, and that users had again
    before its repair.
    """
    assert e.samples is not None
    assert e.known is not None
    returned = []
    for node, since in e.worn:
        known = sorted(at for name, at in e.known if name == node and at > since)
        first = known[0] if known else float("inf")
        during = sorted(s for s in e.samples if s.node == node and first < s.at < _repaired(e, node, since))
        closed = [s.at for s in during if s.drained and s.reason.startswith(MUSTER)]
        again = [s for s in during if not s.drained and closed and s.at > closed[0]]
        if not all(_let_in_unknown(e, s, known) for s in again):
            returned.append((node, since))
    return returned


def _let_in_unknown(e: Evidence, opened: Sample, known: Sequence[float]) -> bool:
    """Whether a person had let the node in by records that were restored, and that had not learnt of it again."""
    latest = max(at for at in known if at < opened.at)
    lacked = [at for saved, at in e.restores if saved < latest < at]
    return any(name == opened.node and min(lacked, default=opened.at) < at < opened.at for name, at in e.let_in)


def _repaired(e: Evidence, node: str, since: float) -> float:
    """When what began to fail then was repaired: by a reset that the node wrote down, or with another machine."""
    assert e.diary is not None
    resets = [line.at for line in e.diary if line.node == node and line.what == "reset" and line.at > since]
    built = [at for at, _ in e.machines[node] if at > since]
    return min([*resets, *built], default=float("inf"))


def false_quarantines(e: Evidence) -> Count | None:
    """Healthy machines that a verdict put into quarantine, or one that never lost power for having done so."""
    if e.quarantined is None or e.diary is None:
        return None
    judged = [each for each in e.quarantined if each.actor != PERSON and BUDGET not in each.reason]
    wrong = []
    for each in judged:
        # Records that were restored judge by what they knew.
        moments = [each.at, *(saved for saved, at in e.restores if at < each.at and not _rebuilt(e, each, at))]
        if not any(_deserved(e, each, at) for at in moments):
            wrong.append(f"{each.node} at {each.at:.0f}: {each.reason}")
    return Count(len(judged), wrong)


def _rebuilt(e: Evidence, each: Quarantined, since: float) -> bool:
    """Whether the node became another machine between then and its quarantine."""
    return any(since < built <= each.at for built, _ in e.machines[each.node])


def _deserved(e: Evidence, each: Quarantined, moment: float) -> bool:
    """Whether the machine was faulty, was failing in service, or had lost power at that moment."""
    built, faulty = max(machine for machine in e.machines[each.node] if machine[0] <= moment)
    rebooted = REBOOTED in each.reason and any(n == each.node and built < at < moment for n, at in e.reboots)
    failing = any(n == each.node and at < moment < _repaired(e, n, at) for n, at in e.worn)
    return faulty or failing or rebooted


def double_tests(e: Evidence) -> Count | None:
    """Jobs that a node started twice or during another one, and stages that were tested again after a verdict."""
    if e.diary is None or e.jobs is None or e.stages is None:
        return None
    starts = [line for line in e.diary if line.what == "start"]
    twice = collections.Counter((line.node, line.job) for line in starts if not _forgot(e, line))
    found = [f"{node}: job {job} was started {times} times" for (node, job), times in twice.items() if times > 1]
    found += [f"{line.node}: {line.about} during another job" for line in e.diary if line.what == "overlap"]
    return Count(len(starts), found + [again for line in starts if (again := _again(e, line))])


def _forgot(e: Evidence, start: Line) -> bool:
    """Whether a back-up was restored before this start that lacks a result of this job, which the records had had."""
    assert e.diary is not None
    measured = [line.at for line in e.diary if line.job == start.job and line.about in e.forgotten]
    return any(at < restored < start.at for at in measured for _, restored in e.restores)


def _again(e: Evidence, start: Line) -> str:
    """Why this start was one too many, "" if it was not."""
    assert e.jobs is not None
    assert e.stages is not None
    job = e.jobs.get(start.job)
    if job is None or job.run in e.touched:
        return ""
    verdicts = [s for s in e.stages if (s.run, s.node, s.stage) == job and s.verdict != INCONCLUSIVE]
    if any(stage.at < start.at for stage in verdicts):
        return f"{job.node}: {job.stage} of {job.run} again after its verdict"
    return ""


def leases_leaked(e: Evidence) -> Count | None:
    """Leases of runs that are over, which are examined."""
    if e.leases is None or e.live is None or e.runs is None:
        return None
    leaked = [(node, run) for node, run in e.leases if run not in e.live]
    over = {(each.node, each.run) for each in e.runs if each.run not in e.live}
    return Count(len(over.union(leaked)), [f"{node} by {run}" for node, run in leaked])


def processes_left_on_nodes(e: Evidence) -> Count | None:
    """What still runs on nodes, or holds them in Slurm, when no run is under way there."""
    if e.processes is None or e.leases is None or e.live is None or e.nodes is None:
        return None
    busy = {node for node, run in e.leases if run in e.live}
    return Count(len(e.nodes.keys() - busy), [f"{node}: {what}" for node, what in e.processes if node not in busy])


def nodes_left_drained(e: Evidence) -> Count | None:
    """Nodes in production that the scheduler keeps closed, and no person of the campaign."""
    if e.shown is None or e.nodes is None:
        return None
    held = {drain.node for drain in e.drains if drain.until is None}
    free = {node: shown for node, shown in e.shown.items() if e.nodes[node] == "production" and node not in held}
    return Count(len(free), [f"{node}: {shown.reason}" for node, shown in free.items() if shown.drained])


def foreign_drains_undone(e: Evidence) -> Count | None:
    """Drains of a person that a sample does not show, or for another reason. Examined: those with a sample."""
    if e.samples is None:
        return None
    sampled, undone = 0, []
    for drain in e.drains:
        end = (drain.until or float("inf")) - CLOCK_S
        during = [s for s in e.samples if s.node == drain.node and drain.since + CLOCK_S <= s.at <= end]
        sampled += bool(during)
        if any(not s.drained or s.reason != drain.reason for s in during):
            undone.append(f"{drain.node}: {drain.reason}")
    return Count(sampled, undone)


def mails_lost(e: Evidence) -> Count | None:
    """Verdicts without a mail that was sent or waits to be sent."""
    if e.runs is None or e.mails is None or e.unsent is None:
        return None
    sent = {(run, node) for _, run, node in e.mails}
    due = [
        run
        for run in e.runs
        if run.ended and run.verdict and run.run not in e.touched and not run.headline.startswith(PREEMPTED)
    ]
    waiting = (*e.unsent, *e.forgotten)
    lost = [run for run in due if (run.run, run.node) not in sent and not any(run.run in key for key in waiting)]
    return Count(len(due), [f"{run.run}: {run.verdict}" for run in lost])


def mails_doubled(e: Evidence) -> Count | None:
    """Mails that arrived more than once."""
    if e.mails is None:
        return None
    times = collections.Counter(e.mails)
    times.subtract(e.resent)
    again = [f"{run or message} of {node}" for (message, run, node), count in times.items() for _ in range(count - 1)]
    return Count(len(set(e.mails)), again)


def events_lost(e: Evidence) -> Count | None:
    """Events that the receiver of the audit stream has not accepted."""
    if e.events is None or e.accepted is None:
        return None
    return Count(len(e.events), [f"event {name}" for name in sorted(e.events - e.accepted)])


def hung(e: Evidence) -> Count | None:
    """Runs that are still under way after the time to settle, and lives that came to no end. Examined: runs."""
    if e.live is None or e.runs is None:
        return None
    return Count(len(e.live.union(run.run for run in e.runs)), [*sorted(e.live), *e.stuck])


OBSERVERS: dict[str, Observer] = {
    each.__name__: each
    for each in (
        results_lost, false_admissions, false_quarantines, double_tests, leases_leaked, processes_left_on_nodes,
        nodes_left_drained, foreign_drains_undone, mails_lost, mails_doubled, events_lost, hung,
    )
}  # fmt: skip
"""The keys of a campaign's figures after ``faults`` and ``lives``."""


def judge(evidence: Evidence) -> dict[str, Count | None]:
    """Every observer's findings."""
    return {name: observer(evidence) for name, observer in OBSERVERS.items()}
