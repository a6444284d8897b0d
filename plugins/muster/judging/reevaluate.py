"""A recorded verdict spoken again, from the stored result: by what it was spoken by then, or by something else.

Two replays of the same run by the same snapshot and SKU revision are the same, and so is the recorded verdict, as long
as the judge is. Where a difference is found although both are those that were recorded, the judge has changed.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

from muster import records
from muster.errors import MusterError, UnknownRevision
from muster.judging import repeats
from muster.judging.chassis import Chassis, joined
from muster.judging.references import with_history
from muster.lifecycle.transitions import STAGES
from muster.records import RunRecord, raw
from muster.settings import settings
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import Evidence, Finding, Judgement
from muster_criteria.sku_files.skus import Sku, SkuError, load_sku
from muster_reports.model import StageReport

NO_PEERS = "none"
"""Instead of a snapshot's version: judge by the SKU alone."""

EVIDENCE = "evidence"
"""The metric of findings that the controller established itself: no result holds them."""


@dataclasses.dataclass(frozen=True)
class Replayed:
    """One stage judged again; ``replayed`` is None where it could not be, and ``why_not`` says why.

    ``result``: what it was judged by.
    """

    recorded: Judgement
    replayed: Judgement | None
    why_not: str = ""
    result: StageResult | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """What the replay says otherwise than the record, a sentence each."""
        return () if self.replayed is None else tuple(differences(self.recorded, self.replayed))


def replay(
    run: RunRecord, *, as_of: str = "", skus: str = "", stage: str = "", waived_at: datetime.datetime | None = None
) -> list[Replayed]:
    """Judge the run's stages (or ``stage`` alone) again.

    ``as_of``: the version of a peer snapshot, or ``NO_PEERS``; the one that each verdict cites, if not given. ``skus``:
    a revision that is kept, or a folder of SKU files; the one that each verdict cites, if not given. ``waived_at``: the
    waivers of which moment count; of when each verdict was recorded, if not given. Raises UnknownSnapshot,
    UnknownRevision, MusterError.
    """
    report = records.run_report(run.dag_id, run.run_id, node=run.node)
    chosen = [each for each in report.stages if not stage or each.judgement.stage == stage]
    if not chosen:
        told = ", ".join(each.judgement.stage for each in report.stages) or "none"
        raise MusterError(f"run {run.run_id} has no verdict {f'on stage {stage!r}' if stage else 'at all'}: has {told}")
    find = _finder(run.sku, skus)
    return [_again(run, each, as_of, find, waived_at) for each in chosen]


def _again(
    run: RunRecord,
    stage: StageReport,
    as_of: str,
    find: Callable[[str], Sku],
    waived_at: datetime.datetime | None,
) -> Replayed:
    from muster_criteria.stage.judge import judge

    said = stage.judgement
    if said.stage not in STAGES:
        return Replayed(said, None, "it was judged together with other nodes, and cannot be judged alone")
    kept = raw.sent(run.dag_id, run.run_id, said.stage, node=run.node)
    if kept is None or kept.result is None or kept.recorded_at is None:
        return Replayed(said, None, "what the node sent is not kept (any more), or nothing came from it")
    sku, result, node = find(said.sku_version), parse_result(kept.result), records.get_node(run.node)
    result, others = repeats.arranged(run, sku, result, before=kept.recorded_at)
    result = joined(result, Chassis.from_json(kept.chassis) if kept.chassis else None)
    again = repeats.readings(others, sku, node)
    version = as_of or said.snapshot or NO_PEERS
    peers = None
    if version != NO_PEERS:
        snapshot = records.load_snapshot(version, run.sku, said.level, simulated=said.simulated)
        peers = with_history(snapshot, run, node, sku, before=kept.recorded_at, repeats=again)
    known = None
    if as_of != NO_PEERS:
        known = records.goldens_for(result, run.run_id, simulated=said.simulated, before=kept.recorded_at)
    established = [_evidence(finding) for finding in said.findings if finding.metric == EVIDENCE]
    judged = judge(
        result,
        sku,
        said.stage,
        said.level,
        evidence=established,
        simulated=said.simulated,
        references=peers,
        goldens=known,
        repeats=again,
        others=others,
        previous_faults=records.previous_faults(result, run.node, run.run_id, before=kept.recorded_at),
    )
    judged = records.beside_neighbours(judged, run.node, result.environment, before=kept.recorded_at)
    return Replayed(said, records.waived_at(run.node, judged, waived_at or kept.recorded_at), result=result)


def differences(recorded: Judgement, replayed: Judgement) -> Iterator[str]:
    """What two judgements of one stage say differently. Pure."""
    if recorded.verdict != replayed.verdict:
        yield f"verdict {recorded.verdict} → {replayed.verdict}: {replayed.reason}"
    before, after = ({_key(each): each for each in one.findings} for one in (recorded, replayed))
    for key, finding in before.items():
        if key not in after:
            yield f"no longer found ({finding.severity}): {finding.summary}"
        elif _said(changed := after[key]) != _said(finding):
            yield f"found otherwise ({finding.severity} → {changed.severity}): {changed.summary}"
    for key, finding in after.items():
        if key not in before:
            yield f"found now ({finding.severity}): {finding.summary}"
    for what in ("required", "measured", "judged"):
        old, new = getattr(recorded.coverage, what), getattr(replayed.coverage, what)
        if old != new:
            yield f"{what}: {old} → {new}"


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.metric, finding.device, tuple(sorted(finding.labels))


def _said(finding: Finding) -> tuple[object, ...]:
    return (
        finding.severity, finding.observed, finding.expected, finding.fault_class, finding.action,
        round(finding.confidence, 3), finding.waived,
    )  # fmt: skip


def _evidence(finding: Finding) -> Evidence:
    return Evidence(finding.rule, finding.summary, finding.device, finding.fault_class, finding.action)


def _finder(name: str, skus: str) -> Callable[[str], Sku]:
    """What gives the SKU to judge by, for the revision that a verdict cites."""
    folder = Path(skus).expanduser()
    if skus and not folder.is_dir():
        if "/" in skus:
            raise UnknownRevision(f"there is no folder {skus}; give one of SKU files, or a revision that is kept")
        return lambda cited: records.load_revision(name, skus)
    if not skus:
        return lambda cited: records.load_revision(name, cited)
    if not (folder / f"{name}.yaml").is_file():
        raise UnknownRevision(f"there is no {name}.yaml in {folder}; give a folder of SKU files that has it")
    try:
        loaded = load_sku(name, (folder, *settings().sku_folders))
    except SkuError as error:
        raise UnknownRevision(str(error)) from None
    return lambda cited: loaded
