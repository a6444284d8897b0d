"""The task that speaks PROVISIONAL verdicts again by the newest peer statistics, so that no person need settle them.

A new model's first nodes are judged before anybody knows what is usual. What they measured is kept, and says more once
there are peers: of most that they are well, and of some that they are not.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator, Sequence

from airflow.sdk.exceptions import AirflowFailException

from muster import records
from muster.errors import IllegalMove, LeaseHeld, MusterError
from muster.judging.reevaluate import reevaluate
from muster.operators import mailing
from muster.records import RunRecord, StageVerdict
from muster_criteria.measured import StageResult
from muster_criteria.model import Judgement, Verdict

log = logging.getLogger(__name__)

SETTLED = frozenset({Verdict.PASS, Verdict.WARN, Verdict.FAIL})


def speak_again() -> dict[str, str]:
    """{node: what is said of its run now} of every node of which peers say something that nobody could say before.

    A node that a run or a person has taken further meanwhile is left to them. Raises AirflowFailException, naming them,
    where nodes could not be judged; the others are done by then.
    """
    said, failed = {}, []
    for node, verdicts in records.provisional_verdicts().items():
        try:
            for dag_id, run_id in dict.fromkeys((each.dag_id, each.run_id) for each in verdicts):
                mine = [each for each in verdicts if (each.dag_id, each.run_id) == (dag_id, run_id)]
                closed = _speak_again(records.get_run(dag_id, run_id, node=node), mine)
                if closed is not None:
                    said[node] = f"{closed.verdict}: {closed.headline}"
        except (LeaseHeld, IllegalMove) as error:
            log.info("%s is left alone: %s", node, error)
        except MusterError as error:
            failed.append(f"{node}: {error}")
    if failed:
        raise AirflowFailException(f"not judged again were {'; '.join(failed)}")
    return said


def _speak_again(run: RunRecord, verdicts: Sequence[StageVerdict]) -> RunRecord | None:
    """The run as it stands now, its node moved and its report mailed; None where peers settle nothing."""
    from muster_criteria.stage.verdict import overall

    spoken = {said.stage: (result, said) for result, said in _settled(run, verdicts)}
    if not spoken:
        return None
    report = records.run_report(run.dag_id, run.run_id, node=run.node)
    stood = [stage.judgement for stage in report.stages]
    now = [spoken[said.stage][1] if said.stage in spoken else said for said in stood]
    closed = records.record_reevaluation(run, list(spoken.values()), *overall(now, run.required_stages))
    log.info("%s: %s: %s (%s)", run.node, closed.verdict, closed.headline, closed.state_after)
    mailing.send_report(run.dag_id, run.run_id, node=run.node)
    return closed


def _settled(run: RunRecord, verdicts: Sequence[StageVerdict]) -> Iterator[tuple[StageResult, Judgement]]:
    """Each stage of which the newest snapshot says more than PROVISIONAL, with the result that it was judged by.

    By the waivers of this moment, since it is now that it is said.
    """
    now = datetime.datetime.now(datetime.UTC)
    for said in verdicts:
        latest = records.latest_snapshot(run.sku, said.level, simulated=run.simulated)
        if latest is None or latest.version == said.snapshot:
            continue
        for again in reevaluate(run, as_of=latest.version, stage=said.stage, waived_at=now):
            if again.result is not None and again.outcome is not None and again.outcome.verdict in SETTLED:
                yield again.result, again.outcome
