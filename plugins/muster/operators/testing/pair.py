"""One side of a pair of a block's round as one mapped Airflow task: its partner's task runs at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.model.rounds import Outcome, PlannedRound, Side
from muster.model.runs import Run, RunKey
from muster.model.stages import ROUND_STAGES
from muster.operators.testing import rounds
from muster.operators.testing.member import GRACE_S
from muster.operators.testing.remote_job import RemoteJobOperator
from muster.remote.job import attempt as remote
from muster.remote.job import outcome
from muster.remote.job.attempt import Attempt, Finished, Programme
from muster.remote.job.attempt_key import AttemptKey
from muster_criteria.cluster.plan import PAIRS, pair_call, pair_deadline_s
from muster_criteria.measured import StageResult
from muster_criteria.sku_files.model import Sku

if TYPE_CHECKING:
    from airflow.sdk.definitions.context import Context


class NotMeasured(AirflowFailException):
    """The pair was not measured, and its side is recorded as such; or the node has no pair."""


class MusterPairOperator(RemoteJobOperator):
    """Tests one node's rails with the partner that the run's latest round gives it. Mapped over ``member``.

    ``pair``: the task's name in the Grid. Which round, and with whom, is in the records (``store.rounds``).
    """

    def __init__(self, *, member: str, pair: str = "", **kwargs: Any) -> None:
        super().__init__(stage=ROUND_STAGES[0], grace_s=GRACE_S, member=member, **kwargs)
        self.pair = pair

    def execute(self, context: Context) -> Any:
        """As RemoteJobOperator; a side that is known already is not measured again."""
        planned = self._take_round(context)
        key = RunKey.of(context["ti"])
        side = store.rounds.sides(key, planned.number).get(planned.number, {}).get(self.member)
        if side is not None and side.outcome is Outcome.MEASURED:
            return self._ended(side)
        return super().execute(context)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """As RemoteJobOperator."""
        self._take_round(context)
        return super().execute_complete(context, event)

    def _take_round(self, context: Context) -> PlannedRound:
        ti: Any = context["ti"]
        planned = store.rounds.planned(RunKey.of(ti))
        if not planned or planned[-1].pair_of(self.member) is None:
            # A person has cleared the task of a node that was left out since its pair had been prevented.
            store.rounds.reopen(RunKey.of(ti), self.member)
            # Not a skip: it would also skip the next round, in which the node may have a pair again.
            raise NotMeasured(f"{self.member} has no pair in the latest round of this run")
        self.stage = ROUND_STAGES[planned[-1].number - 1]
        return planned[-1]

    def _programme(self, context: Context, run: Run, sku: Sku, key: AttemptKey, job_key: str) -> Programme:
        block = store.attempts.block_of(run.key)
        call = pair_call(sku.block, run.level, rounds.params_of(run.key, block, self.member), block["seed"])
        return Programme((call,), pair_deadline_s(sku.block, run.level))

    @contextlib.contextmanager
    def _failing_at_once(self, context: Context) -> Iterator[None]:
        """Record why this side was not measured, once no retry follows, and that the node is not at fault."""
        try:
            with super()._failing_at_once(context):
                yield
        except AirflowFailException as error:
            if not isinstance(error, NotMeasured):
                self._note(context, Side(self.member, Outcome.UNMEASURED, str(error)))
            raise
        except Exception as error:
            if self._is_last_try(context):
                self._note(context, Side(self.member, Outcome.UNMEASURED, str(error)))
            raise

    def _note(self, context: Context, side: Side) -> None:
        ti: Any = context["ti"]
        store.rounds.record(RunKey.of(ti), self._number, side)

    @property
    def _number(self) -> int:
        return ROUND_STAGES.index(self.stage) + 1

    def _record(self, attempt: Attempt, finished: Finished | None) -> tuple[Side, str]:
        if finished is None:
            return self._recorded(attempt)
        result, why_missing = remote.checked_result(attempt, finished)
        found = outcome.evidence(
            finished.end.kind, job=attempt.job_key, stage="a round of pairs", loads=True, losses=1, neighbours=""
        )
        evidence = tuple((each.kind, each.sentence, each.incident) for each in found)
        if result is None or result.end != "completed":
            why = why_missing or (result.notes[0] if result and result.notes else finished.end.sentence)
            side = Side(self.member, Outcome.SILENT, why, (), evidence)
        else:
            figures = tuple(row for row in result.measurements if row.probe == PAIRS)
            side = Side(self.member, Outcome.MEASURED, _trouble(result), figures, evidence)
        store.rounds.record(attempt.task.key, self._number, side)
        remote.record_end(attempt, finished.end, outcome.final(finished.end.kind))
        return side, result.end if result else ""

    def _recorded(self, attempt: Attempt) -> tuple[Side, str]:
        """The side as it was recorded; silent if a verdict on it was lost with its worker."""
        found = store.rounds.sides(attempt.task.key, self._number).get(self._number, {}).get(self.member)
        return found or Side(self.member, Outcome.SILENT, "its task ended before it recorded a result"), ""

    def _finish(self, context: Context, attempt: Attempt, recorded: Side, job_end: str) -> Any:
        return self._ended(recorded)

    def _ended(self, side: Side) -> Any:
        """Fails the task where the pair was not measured; the block's judge decides what that means."""
        if side.outcome is not Outcome.MEASURED or side.why:
            raise NotMeasured(f"{self.pair or self.member}: {side.why}")
        return {"member": self.member, "round": self._number}


def _trouble(result: StageResult) -> str:
    """Why the pair was not measured to its end, "" if it was."""
    for end in result.probes:
        if end.probe == PAIRS and end.status != "completed":
            return f"{PAIRS} {end.status.replace('_', ' ')}: {end.reason or 'no reason given'}"
    met = [row for row in result.measurements if row.metric == "pair_met"]
    if met and all(row.value == 1 for row in met):
        return ""
    return next((row.note for row in met if row.note), "the node does not say whether it met its partner")
