"""The other runs of a stage's probes in the same qualification run, read from the records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster import store
from muster.model.nodes import Node
from muster.model.runs import Run
from muster_criteria.measured import BadResult, StageResult, parse_result
from muster_criteria.model import Verdict
from muster_criteria.sku_files.model import Sku

if TYPE_CHECKING:
    import datetime

    import pandas as pd


ALONE = "the result that it repeats was measured with other parameters, or is not kept"
"""``Case.replanned`` of a repeat for which ``arranged`` finds no whole result."""


def arranged(
    run: Run, sku: Sku, work: Mapping[str, str], now: StageResult, *, before: datetime.datetime | None = None
) -> tuple[StageResult, tuple[StageResult, ...]]:
    """Returns (the result that the stage is judged by, the other results of the same test in this run, oldest first).

    ``work``: what the probes have to do (``work.work_of``); a result of other work is not of the same test. ``now``:
    the result that has just come. ``before``: only records until then count (default: now).
    """
    from muster_criteria.stage import retests

    if not retests.repeatable(sku, now.stage, run.level):
        return now, ()
    # The same job again, after a worker died between recording and reporting, is not another run.
    attempts = [each for each in _earlier(run, now.stage, work, before) if each[1].job_id != now.job_id]
    return retests.arranged(attempts, now)


def _earlier(
    run: Run, stage: str, work: Mapping[str, str], before: datetime.datetime | None
) -> list[tuple[Verdict, StageResult]]:
    found, wanted = [], _of(stage, work)
    for each in store.raw.stage_attempts(run.key, stage, node=run.node, before=before):
        # The work of a revision that is not kept is unknown.
        if each.replanned or _of(stage, store.revisions.work(each.sku, each.sku_version, run.level)) != wanted:
            continue
        try:
            found.append((each.verdict, parse_result(each.result)))
        except BadResult:
            continue
    return found


def _of(stage: str, work: Mapping[str, str]) -> dict[str, str]:
    return {key: did for key, did in work.items() if key.startswith(f"{stage}/")}


def readings(others: tuple[StageResult, ...], sku: Sku, node: Node) -> pd.DataFrame | None:
    """Readings of the repeatable probes of these results, ``run`` being the job; None if there are none."""
    from muster_criteria.fleet.series.readings import readings_of, together
    from muster_criteria.stage.retests import repeated_rows

    frames = [
        readings_of(
            repeated_rows(each, sku),
            node=node.name,
            at=each.started_at,
            run=each.job_id,
            sku=sku.name,
            environment=each.environment,
            zone=str(node.labels.get(store.measured.ZONE, "")),
        )
        for each in others
    ]
    return together(frames) if any(len(frame) for frame in frames) else None


def may_go_on(result: StageResult, probes: tuple[str, ...]) -> bool:
    """Whether another run of ``probes`` is useful: the last one was complete and measured all of them."""
    measured = {each.probe for each in result.measurements if each.value is not None}
    return bool(probes) and result.end == "completed" and not result.partial and set(probes) <= measured
