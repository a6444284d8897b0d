"""Readings of a bench as the results that nodes would send, so that the judge of production judges them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd

from muster_criteria.labels import labels_of
from muster_criteria.measured import Guard, Measured, ProbeEnd, StageResult
from muster_criteria.rows import PRESENCE

Environment = Mapping[str, str | None]


def results_of(
    readings: pd.DataFrame,
    stage: str,
    level: str,
    probe_of: Mapping[str, str],
    environment_of: Callable[[str], Environment] = lambda node: {},
    *,
    started_at: float = 0.0,
) -> Iterator[StageResult]:
    """The result of each node in these readings (see ``readings.as_readings``), by node; all its probes completed.

    ``probe_of``: by metric. Values are numbers of the bench's own, so they are not validated again.
    """
    names = {name: readings[name].cat.categories.tolist() for name in ("node", "device", "metric", "labels", "unit")}
    labels = [dict(labels_of(text)) for text in names["labels"]]
    order = np.argsort(readings["node"].cat.codes.to_numpy(), kind="stable")
    codes = {name: readings[name].cat.codes.to_numpy()[order] for name in names}
    node = codes["node"]
    bounds = [*np.flatnonzero(np.diff(node, prepend=-1)).tolist(), len(node)]
    columns = [codes[name].tolist() for name in ("device", "metric", "labels", "unit")]
    columns.append(readings["value"].to_numpy()[order].tolist())
    for first, end in itertools.pairwise(bounds):
        measured = [
            Measured.model_construct(
                probe=probe_of[metric], metric=metric, device=names["device"][device], unit=names["unit"][unit],
                value=value, text=None, labels=labels[label], samples=1, spread=None, note="",
            )
            for device, number, label, unit, value in zip(*(each[first:end] for each in columns), strict=True)
            if (metric := names["metric"][number]) != PRESENCE
        ]  # fmt: skip
        name = names["node"][node[first]]
        yield StageResult.model_construct(
            schema_="muster.result/1", job_id=f"{name}-{started_at:g}", node=name, stage=stage, level=level, fence=0,
            agent_sha256="", simulated=True, started_at=started_at, ended_at=started_at, end="completed",
            partial=False, identity={}, environment=dict(environment_of(name)), guard=Guard(),
            probes=[
                ProbeEnd(probe=probe, status="completed", reason="", started_at=0.0, duration_s=1.0)
                for probe in sorted({each.probe for each in measured})
            ],
            measurements=measured, notes=[],
        )  # fmt: skip
