"""The judge's input: everything that one stage's verdict depends on, as one value."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pandas as pd

from muster_criteria.context.goldens import Goldens
from muster_criteria.context.versions import Running
from muster_criteria.fleet.peers.references import References
from muster_criteria.measured import StageResult
from muster_criteria.model import Evidence
from muster_criteria.sku_files.model import Sku


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One attempt at one stage, with what it is judged by. The same case always gives the same judgement.

    Attributes:
        sku: The SKU whose limits and requirements apply.
        stage: The stage that was to be run.
        level: The level at which it was to be run.
        result: What the node measured; None if nothing usable came back.
        why_missing: One sentence: the reason why there is no result.
        evidence: What the controller itself established; each item is a finding.
        simulated: Whether the records know the node as simulated; the result's own mark is not trusted.
        references: Peer snapshot and the node's earlier visits; None: judge by the SKU alone.
        goldens: Digests that the fleet agreed on.
        others: The other results of the same test in this run (see ``retests.arranged``).
        repeats: The readings in ``others``.
        running: The versions of drivers and firmware on the other nodes of the SKU.
        replanned: Why the result was measured with other parameters than the SKU's, and passes nothing; "" if not.
        repaired_for: Seconds from the last repair by a person until the newest result; None without a repair.
        previous_faults: {device: number of earlier runs in which the part that sits there failed}.
    """

    sku: Sku
    stage: str
    level: str
    result: StageResult | None = None
    why_missing: str = ""
    evidence: tuple[Evidence, ...] = ()
    simulated: bool = False
    references: References | None = None
    goldens: Goldens = dataclasses.field(default_factory=Goldens)
    others: tuple[StageResult, ...] = ()
    repeats: pd.DataFrame | None = None
    running: Running = dataclasses.field(default_factory=dict)
    replanned: str = ""
    repaired_for: float | None = None
    previous_faults: Mapping[str, int] = dataclasses.field(default_factory=dict)
