"""Who was lost: what the members say of each other, weighed, since who was lost to the others often blames them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster_criteria.cluster.model import COLLECTIVES, TRAINING, Case, Measurements, MemberResult
from muster_criteria.model import Action, FaultClass, Finding, Severity
from muster_criteria.words import listed

PROBES = (COLLECTIVES, TRAINING)


def judge_presence(members: Sequence[MemberResult], measured: Mapping[str, Measurements], case: Case) -> None:
    """Name who was lost, and why; doubt everybody whose work ended early with it."""
    accusations = {
        name: {other: why for other, why in accused(told).items() if other in measured}
        for name, told in measured.items()
    }
    for member in members:
        name = member.name
        accusers = sorted(at for at, accused in accusations.items() if at != name and name in accused)
        others = [at for at, told in measured.items() if at != name and _reports(told)]
        why = _own_word(member)
        if member.result is None or (accusers and (2 * len(accusers) > len(others)) and not _mutual(name, accusations)):
            said = accusations[accusers[0]][name] if accusers else why
            _lose(name, said if why in said else f"{said}; of itself: {why}", accusers, case)
        elif accusers and _mutual(name, accusations):
            case.doubt([name], f"it and {listed(accusers)} lost each other: one of them, or what connects them")
        elif why:
            case.doubt([name], why)
    for name, told in measured.items():
        if name not in case.missing:
            _doubt_broken(name, told, case)
    if case.missing:
        case.note(f"Lost: {listed(sorted(case.missing))}.")


def accused(told: Measurements) -> dict[str, str]:
    """Whom a member says was lost to it, and why."""
    return {
        row.labels.get("member", ""): row.note or "it gave no reason"
        for probe in PROBES
        for row in told.rows(probe, "member_missing")
        if row.value
    }


def _reports(told: Measurements) -> bool:
    return any(told.rows(probe, "member_missing") for probe in PROBES)


def _mutual(name: str, accusations: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether, in a pair, each says that the other was lost; where there are more, the majority knows."""
    return len(accusations) == 2 and all(
        other in accused for other, accused in ((n, accusations[o]) for n in accusations for o in accusations if n != o)
    )


def _own_word(member: MemberResult) -> str:
    """Why this member's own result is not whole; empty if it is."""
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


def _lose(name: str, why: str, accusers: Sequence[str], case: Case) -> None:
    case.missing.add(name)
    case.doubt([name], f"it was lost to the block: {why}")
    case.find(
        name,
        Finding(
            rule="member_missing",
            metric="member_missing",
            device="node",
            severity=Severity.WARNING,
            fault_class=FaultClass.NODE,
            action=Action.RETEST,
            observed=why,
            expected="to stay until the block's end",
            source=f"said by {listed(list(accusers))}" if accusers else "no result came back from it",
            summary=f"The node was lost to the block: {why}.",
        ),
    )


def _doubt_broken(name: str, told: Measurements, case: Case) -> None:
    for probe in PROBES:
        for row in told.rows(probe, "block_intact"):
            if row.value == 0:
                case.doubt([name], f"{probe} could not be finished: {row.note or 'no reason given'}")
