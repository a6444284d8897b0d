"""The task that re-evaluates PROVISIONAL verdicts against the newest peer statistics.

The first nodes of a new model are judged without peers. Their stored results are judged again once there are enough.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.admission import service
from muster.errors import IllegalMove, NodeLeased, apart
from muster.judging.reevaluate import reevaluate
from muster.model.runs import Run, RunKey, StageVerdict
from muster.reporting import mailing
from muster_criteria.model import Verdict

log = logging.getLogger(__name__)

FINAL = frozenset({Verdict.PASS, Verdict.WARN, Verdict.FAIL})


def reevaluate_provisional() -> dict[str, str]:
    """Re-evaluate every PROVISIONAL run. Returns {node: "VERDICT: headline"} of the runs whose verdict is now final.

    Skips a node that another run holds or whose state has changed. Raises AirflowFailException with the nodes that
    could not be judged, after all others are recorded.
    """
    changed: dict[str, str] = {}
    failed: list[str] = []
    unmailed: list[str] = []
    for node, verdicts in store.reevaluations.provisional().items():
        with apart(node, failed), _skipped(node):
            for dag_id, run_id in dict.fromkeys((each.dag_id, each.run_id) for each in verdicts):
                mine = [each for each in verdicts if (each.dag_id, each.run_id) == (dag_id, run_id)]
                closed = _reevaluate_run(store.runs.get(RunKey(dag_id, run_id), node=node), mine)
                if closed is not None:
                    changed[node] = f"{closed.verdict}: {closed.headline}"
                    with apart(node, unmailed):
                        mailing.send_report(closed.key, node=node)
    trouble = {"not re-evaluated": failed, "re-evaluated, and not mailed to all": unmailed}
    if any(trouble.values()):
        raise AirflowFailException("; ".join(f"{what}: {'; '.join(each)}" for what, each in trouble.items() if each))
    return changed


@contextlib.contextmanager
def _skipped(node: str) -> Iterator[None]:
    try:
        yield
    except (NodeLeased, IllegalMove) as error:
        log.info("%s is skipped: %s", node, error)


def _reevaluate_run(run: Run, verdicts: Sequence[StageVerdict]) -> Run | None:
    """Record the new verdicts and move the node, in its scheduler too.

    Returns the run, or None if no verdict is final.
    """
    from muster_criteria.stage.verdict import overall

    updates = {each.judgement.stage: each for each in _final_verdicts(run, verdicts)}
    if not updates:
        return None
    recorded = store.reporting.judgements(run.key, node=run.node)
    current = [updates[stage].judgement if stage in updates else each for stage, each in recorded.items()]
    closed = store.reevaluations.record(run, list(updates.values()), *overall(current, run.required_stages))
    service.carry_out(run.node)
    log.info("%s: %s: %s (%s)", run.node, closed.verdict, closed.headline, closed.state_after)
    return closed


def _final_verdicts(run: Run, verdicts: Sequence[StageVerdict]) -> Iterator[store.reevaluations.Replacement]:
    """Yields the new judgement of each stage that is final under the newest snapshot and the current waivers."""
    now = store.clock.now()
    for recorded in verdicts:
        latest = store.peers.latest(run.sku, recorded.level, simulated=run.simulated)
        if latest is None or latest.version == recorded.snapshot:
            continue
        for again in reevaluate(run, as_of=latest.version, stage=recorded.stage, waived_at=now):
            if again.result and again.outcome and again.standing and again.outcome.verdict in FINAL:
                yield store.reevaluations.Replacement(again.result, again.outcome, again.standing)
