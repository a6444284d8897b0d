"""The path that all nodes of a block share: whether it works, on which node it does not, and how fast it is.

The path is no node's hardware, so each finding is a warning on the nodes that show it. A resume that differs may be a
device's fault, or explained by a member that corrupts data.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from muster_criteria.cluster.model import (
    CORRUPTION,
    OTHERS_MIN,
    TRAINING,
    BlockFindings,
    Earlier,
    Measurements,
    fault_of,
    low_rates,
    of_limit,
    values_of,
)
from muster_criteria.model import Action, Extent, FaultClass, Finding, Lack, Severity
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import BlockProgramme
from muster_criteria.words import against, listed


def judge_path(members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Warns of each node on which the path does not work."""
    hung = _hung(members)
    for name, measured in members.items():
        for row in measured.rows(TRAINING, "shared_path"):
            if row.value == 0 and (not hung or name in hung or "answers" not in row.labels):
                block.add(name, _broken("shared_path", row.note or "it cannot be used"))


def judge_resume(members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Warns of each resume that differs: of the path, if nothing else explains it.

    If the loss differs although weights and moments are equal, the device is at fault. A member that corrupts data
    saves what others load; and if the ranks' weights differ, a checkpoint holds those of only one rank.
    """
    corrupt = block.with_rule(CORRUPTION)
    for name, measured in members.items():
        for row in (each for each in measured.rows(TRAINING, "resume_equal") if each.value == 0):
            why, of_device = row.note or "the resumed training differs", row.device != "node"
            if name in corrupt or (corrupt and not of_device):
                block.note(f"Checkpoint on {name}: {why}, which what was found on {listed(corrupt)} explains.")
            elif not of_device and any(gap.code is Lack.WRONG_SUM for gap in block.suspected.get(name, ())):
                block.note(f"Checkpoint on {name}: {why}, which the wrong sums or weights of the block explain.")
            else:
                block.add(name, _broken("resume_equal", why, row.device))


def judge_rates(
    programme: BlockProgramme, earlier: Earlier | None, members: Mapping[str, Measurements], block: BlockFindings
) -> None:
    """Warns of a node that gets much less of the path than the others, and of slower saves than in earlier blocks."""
    _judge_share(programme.limit("shared_drop", "warn"), members, block)
    _judge_saves(programme.limit("save_rise", "warn"), earlier, members, block)


def _hung(members: Mapping[str, Measurements]) -> set[str]:
    """Nodes on which a small file could not be written either while a save or load did not end.

    The ranks of a save wait for each other: if a few hang, it does not end on any rank.
    """
    return {
        name for name, measured in members.items()
        if any(
            row.value == 0 and row.labels.get("answers") == "no" for row in measured.rows(TRAINING, "shared_path")
        )
    }  # fmt: skip


def _judge_share(limit: Limit, members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Compares each node's rate, while all nodes write or read at once, with the median of the others."""
    for direction in ("write", "read"):
        rates = values_of(members, "shared_rate", direction=direction, nodes="all")
        for name, low in low_rates(limit, rates, dict.fromkeys(rates)).items():
            rate, least = against(low.rate, low.least, "GB/s")
            observed = f"{direction} {rate}, {low.drop:.0f} % less than the others, all at once"
            found = of_limit(
                limit, "slow_shared_path", "shared_rate", observed, f"≥ {least}",
                f"The node {limit.meaning}: {observed}.", labels=(("direction", direction),),
                extent=Extent(low.rate, "GB/s", "lower"),
            )  # fmt: skip
            block.add(name, found)


def _judge_saves(
    limit: Limit, earlier: Earlier | None, members: Mapping[str, Measurements], block: BlockFindings
) -> None:
    """Judges the 95th percentile of the saves, by their slowest rank: a path that is irregular shows as one that is
    slow."""
    saves = values_of(members, "checkpoint_save", stat="p95")
    if earlier is None or earlier.save_s is None or earlier.saves < OTHERS_MIN or not saves:
        return
    seconds, most = statistics.median(saves.values()), earlier.save_s * (1.0 + float(limit.value) / 100.0)
    if seconds <= most:
        return
    shown, at_most = against(seconds, most, "s")
    observed = (
        f"{shown} (p95), {100 * (seconds / earlier.save_s - 1):.0f} % more than the median of "
        f"{earlier.saves} earlier blocks with this recipe and as many devices"
    )
    summary = f"A save {limit.meaning}: {observed}."
    expected, extent = f"≤ {at_most}", Extent(seconds, "s", "higher")
    for name in saves:
        block.add(name, of_limit(limit, "slow_save", "checkpoint_save", observed, expected, summary, extent=extent))


def _broken(metric: str, why: str, device: str = "node") -> Finding:
    of_path = device == "node"
    return Finding(
        rule=metric,
        metric=metric,
        device=device,
        severity=Severity.WARNING,
        fault_class=FaultClass.FACILITY if of_path else fault_of(device),
        action=Action.INSPECT if of_path else Action.RETEST,
        observed=why,
        expected="a checkpoint that is saved, loaded, and the same to the last bit",
        source="by definition: a checkpoint that cannot be resumed is none",
        summary=f"Checkpoints: {why}{'' if of_path else f' on {device}, with the same weights and batch'}.",
    )
