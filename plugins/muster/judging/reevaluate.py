"""Re-evaluation: judges a recorded verdict again from stored data, with the same references or others.

With the snapshot and SKU revision that the verdict cites, the outcome is the recorded verdict. A difference then means
that the judge itself has changed.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

from muster import store
from muster.errors import MusterError, UnknownRevision, of_sku_files
from muster.judging import verdict
from muster.judging.case import Collected, stored_case
from muster.model.runs import Run
from muster.model.stages import STAGES
from muster.rules.lifecycle.waivers import Standing
from muster.settings import settings
from muster_criteria.chassis import Chassis
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import EVIDENCE, Evidence, Finding, Judgement
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku


@dataclasses.dataclass(frozen=True)
class Reevaluated:
    """One stage judged again. ``outcome``: None if not possible, for the reason ``why_not``.

    ``result``: the measurements used; ``standing``: the waivers applied.
    """

    recorded: Judgement
    outcome: Judgement | None
    why_not: str = ""
    result: StageResult | None = None
    standing: Standing | None = None

    @property
    def differences(self) -> tuple[str, ...]:
        """How the outcome differs from the record, one sentence each."""
        return () if self.outcome is None else tuple(differences(self.recorded, self.outcome))


def reevaluate(
    run: Run, *, as_of: str = "", skus: str = "", stage: str = "", waived_at: datetime.datetime | None = None
) -> list[Reevaluated]:
    """Judge the run's stages (or ``stage`` alone) again. Records nothing.

    ``as_of``: the version of a peer snapshot, or ``NO_PEERS``; default: the one that each verdict cites. ``skus``: a
    stored revision, or a folder of SKU files; default: the revision that each verdict cites. ``waived_at``: apply the
    waivers of this moment; default: of the moment at which each verdict was recorded. Raises UnknownSnapshot,
    UnknownRevision, MusterError.
    """
    recorded = store.reporting.judgements(run.key, node=run.node)
    chosen = [each for name, each in recorded.items() if not stage or name == stage]
    if not chosen:
        has = ", ".join(recorded) or "none"
        raise MusterError(f"run {run.run_id} has no verdict {f'on stage {stage!r}' if stage else 'at all'}: has {has}")
    find = _finder(run.sku, skus)
    return [judged_again(run, each, as_of, find, waived_at) for each in chosen]


def judged_again(
    run: Run,
    recorded: Judgement,
    as_of: str,
    find: Callable[[str], Sku],
    waived_at: datetime.datetime | None = None,
) -> Reevaluated:
    """One stage judged again; ``find``: the SKU by the revision cited; the other arguments as ``reevaluate``'s."""
    if recorded.stage not in STAGES:
        return Reevaluated(recorded, None, "it was judged together with other nodes, and cannot be judged alone")
    kept = store.raw.stage_bytes(run.key, recorded.stage, node=run.node)
    if kept is None or kept.result is None or kept.recorded_at is None:
        return Reevaluated(recorded, None, "no result of the node is stored, or retention has deleted it")
    collected = Collected(
        parse_result(kept.result),
        Chassis.from_json(kept.chassis) if kept.chassis else None,
        evidence=tuple(_evidence(finding) for finding in recorded.findings if finding.metric == EVIDENCE),
        replanned=recorded.replanned,
    )
    case = stored_case(run, find(recorded.sku_version), recorded, collected, kept.recorded_at, as_of)
    standing = store.waivers.standing_at(run.node, waived_at or kept.recorded_at, case.result)
    outcome = verdict.decide(case, run.node, lambda: standing, before=kept.recorded_at)
    return Reevaluated(recorded, outcome, result=case.result, standing=standing)


def differences(recorded: Judgement, outcome: Judgement) -> Iterator[str]:
    """How two judgements of one stage differ, one sentence each."""
    if recorded.verdict != outcome.verdict:
        yield f"verdict {recorded.verdict} → {outcome.verdict}: {outcome.reason}"
    before, after = ({_key(each): each for each in one.findings} for one in (recorded, outcome))
    for key, finding in before.items():
        if key not in after:
            yield f"no longer found ({finding.severity}): {finding.summary}"
        elif _decision(changed := after[key]) != _decision(finding):
            yield f"found otherwise ({finding.severity} → {changed.severity}): {changed.summary}"
    for key, finding in after.items():
        if key not in before:
            yield f"found now ({finding.severity}): {finding.summary}"
    for what in ("required", "measured", "judged"):
        old, new = getattr(recorded.coverage, what), getattr(outcome.coverage, what)
        if old != new:
            yield f"{what}: {old} → {new}"


def _key(finding: Finding) -> tuple[object, ...]:
    return finding.rule, finding.metric, finding.device, tuple(sorted(finding.labels))


def _decision(finding: Finding) -> tuple[object, ...]:
    return (
        finding.severity, finding.observed, finding.expected, finding.fault_class, finding.action,
        round(finding.confidence, 3), finding.waived,
    )  # fmt: skip


def _evidence(finding: Finding) -> Evidence:
    return Evidence(
        finding.rule, finding.summary, finding.device, finding.fault_class, finding.action, finding.severity,
        finding.expected, finding.labels, str(finding.extent.value) if finding.extent else "",
    )  # fmt: skip


def _finder(name: str, skus: str) -> Callable[[str], Sku]:
    """Returns the SKU to judge by, given the revision that a verdict cites."""
    if not skus:
        return lambda cited: store.revisions.load(name, cited)
    folder = Path(skus).expanduser()
    if folder.is_dir() and not (folder / f"{name}.yaml").is_file():
        raise UnknownRevision(f"there is no {name}.yaml in {folder}; give a folder of SKU files that has it")
    proposed = proposed_sku(name, skus)
    return lambda cited: proposed


def proposed_sku(name: str, skus: str) -> Sku:
    """The SKU by ``skus``, a folder of SKU files or a stored revision. Raises UnknownRevision, MusterError."""
    folder = Path(skus).expanduser()
    if not folder.is_dir():
        if "/" in skus:
            raise UnknownRevision(f"there is no folder {skus}; give one of SKU files, or a revision that is kept")
        return store.revisions.load(name, skus)
    with of_sku_files():
        return load_sku(name, (folder, *settings().sku_folders))
