"""What is usual among the peers of a run's node: read once a snapshot for all viewers."""

from __future__ import annotations

from collections.abc import Mapping

from muster import store
from muster.web.shared import Shared
from muster_criteria.fleet.peers.bands import Band, Key
from muster_criteria.model import Judgement
from muster_reports.model import RunReport

_bands = Shared[Mapping[Key, Band]](40)


def bands(report: RunReport) -> dict[Key, Band]:
    """The peers' bands by the snapshots that the run's stages were judged by, or by the newest where one had none."""
    return {key: band for stage in report.stages for key, band in _of(stage.judgement).items()}


def _of(judged: Judgement) -> Mapping[Key, Band]:
    version, which = judged.snapshot, (judged.sku, judged.level)
    if not version:
        newest = store.peers.latest(*which, simulated=judged.simulated)
        version = newest.version if newest else ""
    return _bands.get(
        (version, *which, judged.simulated),
        lambda: store.peers.bands(version, *which, simulated=judged.simulated),
    )
