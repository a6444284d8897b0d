"""Probes of a stage that are repeated alone before it is decided: which may be, which must be, and their results.

A programme declares ``sequential`` for noisy tests (see ``sequential``), and ``retest`` for those of which the fleet's
rules may request one second reading: two readings have lower thresholds than one, since the run's noise differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from muster_criteria.fleet.budget import repeat_informs
from muster_criteria.fleet.single import derived
from muster_criteria.measured import StageResult
from muster_criteria.model import Verdict
from muster_criteria.rows import Row, rows_of
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import stage_probes, watching
from muster_criteria.stage.findings import Breaking, Origins, findings_of
from muster_criteria.stage.frame import Frame, build_frame
from muster_criteria.stage.invalid import invalid_rows
from muster_criteria.stage.rules import FLEET_KINDS


def repeatable(sku: Sku, stage: str, level: str) -> tuple[str, ...]:
    """The probes of a stage that may be run again alone. Raises SkuError as ``programme.stage_probes``."""
    uses = stage_probes(sku, stage, level)
    return tuple(name for name, use in uses.items() if use.sequential or level in use.retest)


def arranged(
    attempts: Iterable[tuple[Verdict, StageResult]], now: StageResult
) -> tuple[StageResult, tuple[StageResult, ...]]:
    """(the result that the stage is judged by, the other results of the same test), each oldest first.

    ``attempts``: the earlier ones of the same run, with their verdicts. A repeat belongs to what came before; a whole
    result does so only after an INCONCLUSIVE one: any other verdict was the end. Of the others, those that repeat
    probes of an earlier whole result are no repeats of this one, and are not marked so.
    """
    chain: list[StageResult] = []
    before: Verdict | None = None
    for verdict, result in [*attempts, (None, now)]:
        if not result.repeat and before is not Verdict.INCONCLUSIVE:
            chain = []
        chain.append(result)
        before = verdict
    at = next((at for at in reversed(range(len(chain))) if not chain[at].repeat), len(chain) - 1)
    earlier = (each.model_copy(update={"repeat": False}) for each in chain[:at])
    return chain[at], (*earlier, *chain[at + 1 :])


def rows_again(result: StageResult, sku: Sku) -> list[Row]:
    """Returns the rows that another result adds to the judgement: of an earlier whole result, ``repeated_rows``, since
    it reported its invalid rows itself; of a repeat, invalid rows too, and those that show what it did to the node.
    """
    if not result.repeat:
        return repeated_rows(result, sku)
    watch = watching(sku, result.stage, result.level)
    again, others = _repeatable(result, sku)
    return [*again, *(row for row in others if row.probe in watch)]


def repeated_rows(result: StageResult, sku: Sku) -> list[Row]:
    """The valid rows of a result's completed, repeatable probes, with derived metrics."""
    again, others = _repeatable(result, sku)
    frame = build_frame([*again, *others], sku, result.stage)
    rules = [rule for rule in frame.applicable() if rule.breach == "invalid"]
    broken = {rule.column: np.flatnonzero(frame[rule.column] < 0.0).tolist() for rule in rules}
    invalid = invalid_rows(frame, findings_of(frame, rules, broken, sku), sku)
    return [row for position, row in enumerate(again) if position not in invalid]


def _repeatable(result: StageResult, sku: Sku) -> tuple[list[Row], list[Row]]:
    """(rows of the completed, repeatable probes, with derived metrics; all other rows)."""
    may = set(repeatable(sku, result.stage, result.level))
    done = {end.probe for end in result.probes if end.status == "completed"} & may
    rows = rows_of(result, sku)
    again = [row for row in rows if row.probe in done and not row.refused]
    return [*again, *derived(again, sku.programme.derive)], [row for row in rows if row.probe not in done]


def to_repeat(
    frame: Frame, breaking: Sequence[Breaking], invalid: Collection[int], sku: Sku, result: StageResult
) -> set[str]:
    """Returns the probes of which the fleet's rules need a second reading that is still missing.

    Part-to-part variation needs none: a second reading shows the same. Nor does what is ``invalid``, which only the
    whole stage can replace.
    """
    may = set(repeatable(sku, result.stage, result.level))
    found: set[str] = set()
    origins = Origins(frame)
    for item in breaking:
        if item.rule.kind not in FLEET_KINDS or item.rule.breach != "warn" or item.position in invalid:
            continue
        row = frame.row(item.position)
        comparison = sku.programme.compare[int(row[f"{item.rule.column}_by"])]
        if repeat_informs(item.rule.kind, comparison.spread) and row[f"{item.rule.column}_repeats"] <= 1:
            found |= may & {frame["probe"][at] for at in origins.of(row, comparison, sku)}
    return found
