"""The whole verdict on a stage, new or judged again, in one function; and the recording of a new one."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from muster import store
from muster.model.runs import RunKey
from muster.rules.lifecycle import waivers
from muster.rules.lifecycle.waivers import Standing
from muster_criteria.model import Judgement, Verdict

if TYPE_CHECKING:
    from muster_criteria.stage.case import Case


def decide(
    stage: Case | Judgement, node: str, standing: Callable[[], Standing], *, before: datetime.datetime | None = None
) -> Judgement:
    """Returns the verdict: what the judge finds, then causes that other nodes share, then what is waived.

    ``stage``: of a member of a block, the judgement made with the other members. ``before``: findings on other nodes
    count until then (default: now). ``standing``: called last, so that a waiver given while the judge worked counts.
    Raises UnknownNode.
    """
    from muster_criteria.stage.judge import judge

    found = stage if isinstance(stage, Judgement) else judge(stage)
    if not isinstance(stage, Judgement) and stage.result is not None:
        found = compared_with(found, node, stage.result.environment, before=before)
    return waivers.apply(found, standing())


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A recorded verdict, its findings with their ids. ``swapped``: a sentence for each part that was swapped."""

    judgement: Judgement
    swapped: tuple[str, ...] = ()


def record(key: RunKey, stage: Case | Judgement, sent: store.stages.Sent, *, node: str = "") -> Recorded:
    """Decide a stage's verdict and store it with what was measured. Raises as ``store.stages.recording`` does."""
    name = node or store.runs.get(key).node
    with store.stages.recording(key, sent, node) as recording:
        judgement = decide(stage, name, recording.standing)
        recording.write(judgement)
    return Recorded(judgement, recording.swapped)


def compared_with(
    found: Judgement,
    node: str,
    environment: Mapping[str, str | None],
    *,
    before: datetime.datetime | None = None,
) -> Judgement:
    """The judgement with a finding for each cause that other nodes of the same rack or image share.

    Only what was found on them within the window ``before`` (default: now) counts. Raises UnknownNode.
    """
    from muster_criteria.context.alike import compared_with, groups_of, symptom

    if found.verdict is not Verdict.FAIL or not any(map(symptom, found.findings)):
        return found
    groups = groups_of(store.nodes.get(node).rack, environment)
    return compared_with(found, node, groups, store.common_causes.neighbours(node, found.stage, before))
