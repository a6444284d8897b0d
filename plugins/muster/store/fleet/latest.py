"""The latest conclusive results of every node, as the nodes sent them, for judging a whole fleet at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from sqlalchemy import func, select

from muster.model.states import State
from muster.store.database import access
from muster.store.database.batches import batches
from muster.store.database.engine import reading
from muster.store.database.models import ArtifactRow, NodeRow, RunRow, StageRow
from muster.store.fleet.measured import ZONE
from muster.store.output.raw import StageAttempt
from muster.store.testing.stages import CHASSIS, RESULT
from muster_criteria.model import Verdict

BATCH = 100
"""Number of stages whose results are read at a time; a result has up to some hundred kilobytes."""


@dataclasses.dataclass(frozen=True)
class LatestStage:
    """The latest conclusive verdict of a node's machine on one stage.

    ``attempts``: the attempts at it in that run whose results are kept, oldest first; empty: none is kept any more.
    ``chassis``: the readings of the node's BMC that came with the last of them.
    """

    node: str
    sku: str
    zone: str
    simulated: bool
    dag_id: str
    run_id: str
    stage: str
    level: str
    verdict: Verdict
    attempts: tuple[StageAttempt, ...] = ()
    chassis: bytes | None = None


def stages(sku: str, stage: str, level: str, *, simulated: bool) -> Iterator[LatestStage]:
    """The latest result of that stage at that level, of every node of that SKU that is not retired, by name."""
    newest = func.row_number().over(partition_by=RunRow.node, order_by=(StageRow.origin.desc(), StageRow.id.desc()))
    ranked = (
        select(
            StageRow.run,
            StageRow.verdict,
            RunRow.dag_id,
            RunRow.run_id,
            NodeRow.name,
            NodeRow.labels,
            newest.label("place"),
        )
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.current, StageRow.verdict.in_(access.CONCLUSIVE), StageRow.stage == stage)
        .where(
            StageRow.level == level, NodeRow.sku == sku, NodeRow.simulated == simulated, RunRow.simulated == simulated
        )
        .where(RunRow.machine == NodeRow.machine, NodeRow.state != State.RETIRED)
        .subquery()
    )
    with reading() as session:
        chosen = list(session.execute(select(ranked).where(ranked.c.place == 1).order_by(ranked.c.name)))
        for some in batches(chosen, BATCH):
            kept: dict[int, list[StageAttempt]] = {}
            chassis: dict[int, bytes | None] = {}
            query = (
                select(StageRow.run, StageRow.verdict, ArtifactRow.kind, ArtifactRow.data)
                .join(ArtifactRow, ArtifactRow.stage == StageRow.id)
                .where(StageRow.run.in_([each.run for each in some]), StageRow.stage == stage)
                .where(ArtifactRow.kind.in_((RESULT, CHASSIS)))
                .order_by(StageRow.id, ArtifactRow.kind.desc())
            )
            for run, verdict, kind, data in session.execute(query):
                if kind == RESULT:
                    kept.setdefault(run, []).append(StageAttempt(Verdict(verdict), data))
                chassis[run] = data if kind == CHASSIS else None  # a result's chassis follows it
            for each in some:
                zone = str(each.labels.get(ZONE, ""))
                yield LatestStage(
                    node=each.name, sku=sku, zone=zone, simulated=simulated, dag_id=each.dag_id, run_id=each.run_id,
                    stage=stage, level=level, verdict=Verdict(each.verdict), attempts=tuple(kept.get(each.run, ())),
                    chassis=chassis.get(each.run),
                )  # fmt: skip


def conclusive(node: str = "") -> list[tuple[str, str, str, bool]]:
    """(SKU, stage, level, whether simulated) of all conclusive verdicts, or only those on ``node``, sorted.

    Without retired nodes, whose SKU file may be gone.
    """
    query = (
        select(NodeRow.sku, StageRow.stage, StageRow.level, NodeRow.simulated)
        .join(NodeRow, NodeRow.name == StageRow.node)
        .where(StageRow.current, StageRow.verdict.in_(access.CONCLUSIVE))
        .where(NodeRow.name == (node or NodeRow.name), NodeRow.state != State.RETIRED)
        .distinct()
        .order_by(NodeRow.sku, StageRow.level, StageRow.stage, NodeRow.simulated)
    )
    with reading() as session:
        return [(row[0], row[1], row[2], row[3]) for row in session.execute(query)]
