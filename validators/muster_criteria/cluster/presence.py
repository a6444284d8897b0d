"""Lost members: by a majority of the others' reports, since a lost member often reports the others as lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from muster_criteria.cluster.model import COLLECTIVES, TRAINING, BlockFindings, Measurements, MemberResult, fault_of
from muster_criteria.model import Action, Finding, Lack, Severity
from muster_criteria.words import listed

PROBES = (COLLECTIVES, TRAINING)
MEMBER_MISSING = "member_missing"


def judge_presence(members: Sequence[MemberResult], measured: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Finds lost members; members whose work ended early with them are suspects."""
    began = {probe for probe in PROBES if any(rows.rows(probe, "join_lag") for rows in measured.values())}
    reports = {
        name: {other: why for other, why in reported_lost(rows, began).items() if other in measured}
        for name, rows in measured.items()
    }
    parts = _parts(measured)
    for member in members:
        name = member.name
        reporters = sorted(at for at, lost in reports.items() if at != name and name in lost)
        others = [at for at, rows in measured.items() if at != name and _reports(rows, began)]
        why = _own_reason(member)
        mutual = _is_mutual(reports)
        by_majority = 2 * len(reporters) > len(others) and not mutual
        if member.result is None or by_majority:
            reported = reports[reporters[0]][name] if reporters else why
            whole = why if reported in why else reported if why in reported else f"{reported}; its own result: {why}"
            _add_lost(name, parts.get(name, "node"), whole, reporters, block)
        elif reporters and mutual:
            why = f"it and {listed(reporters)} lost each other: one of them, or what connects them"
            block.suspect([name], Lack.LOST_EACH_OTHER, why)
        elif why:
            block.suspect([name], Lack.ENDED_EARLY, why)
    for name, rows in measured.items():
        if name not in block.missing:
            _suspect_unfinished(name, rows, block)
    if block.missing:
        block.note(f"Lost: {listed(sorted(block.missing))}.")


def reported_lost(rows: Measurements, began: Collection[str] = ()) -> dict[str, str]:
    """Members that this one reports as lost, with its reasons.

    ``began``: probes in which members met. There a report counts only from an admitted member: one that came too late,
    or cannot reach the master, knows nothing about the others.
    """
    return {
        row.labels.get("member", ""): row.note or "it gave no reason"
        for probe in _heard(rows, began)
        for row in rows.rows(probe, MEMBER_MISSING)
        if row.value
    }


def _parts(measured: Mapping[str, Measurements]) -> dict[str, str]:
    """By lost member, the device that most reports name as the reason; members without one are left out."""
    named: dict[str, Counter[str]] = {}
    for at, rows in measured.items():
        for probe in PROBES:
            for row in rows.rows(probe, MEMBER_MISSING):
                name, part = row.labels.get("member", ""), row.labels.get("part", "")
                if row.value and part and name != at:
                    named.setdefault(name, Counter())[part] += 1
    return {name: max(counts.items(), key=lambda item: (item[1], item[0]))[0] for name, counts in named.items()}


def _reports(rows: Measurements, began: Collection[str]) -> bool:
    return any(rows.rows(probe, MEMBER_MISSING) for probe in _heard(rows, began))


def _heard(rows: Measurements, began: Collection[str]) -> list[str]:
    return [probe for probe in PROBES if probe not in began or rows.rows(probe, "join_lag")]


def _is_mutual(reports: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether the members are a pair and each reports the other as lost; in larger blocks the majority decides."""
    return len(reports) == 2 and all(set(lost) | {name} == set(reports) for name, lost in reports.items())


def _own_reason(member: MemberResult) -> str:
    """Why this member's own result is incomplete; empty if it is complete."""
    if member.result is None:
        return member.why_missing or "no result came back"
    if member.result.end != "completed":
        return member.result.notes[0] if member.result.notes else f"its job ended as {member.result.end}"
    ended = {end.probe: end for end in member.result.probes}
    for probe in PROBES:
        if probe not in ended:
            return f"{probe} did not run"
        if ended[probe].status != "completed":
            return f"{probe} {ended[probe].status.replace('_', ' ')}: {ended[probe].reason or 'no reason given'}"
    return ""


def _add_lost(name: str, device: str, why: str, reporters: Sequence[str], block: BlockFindings) -> None:
    block.missing.add(name)
    block.suspect([name], Lack.LOST, f"it was lost to the block: {why}")
    block.add(
        name,
        Finding(
            rule=MEMBER_MISSING,
            metric=MEMBER_MISSING,
            device=device,
            severity=Severity.WARNING,
            fault_class=fault_of(device),
            action=Action.RETEST,
            observed=why,
            expected="to stay until the block's end",
            source=f"reported by {listed(list(reporters))}" if reporters else "no result came back from it",
            summary=f"The node was lost to the block: {why}.",
        ),
    )


def _suspect_unfinished(name: str, rows: Measurements, block: BlockFindings) -> None:
    for probe in PROBES:
        for row in rows.rows(probe, "block_intact"):
            if row.value == 0:
                why = f"{probe} could not be finished: {row.note or 'no reason given'}"
                block.suspect([name], Lack.UNFINISHED, why)
