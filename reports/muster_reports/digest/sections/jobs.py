"""What a job will get of the nodes in service: time between failures, when to save, and the time that trains."""

from __future__ import annotations

from muster_criteria.cluster.goodput import PUBLISHED, SIZES, forecast
from muster_reports.digest.facts import Facts, Jobs, Section
from muster_reports.training_view import forecast_view, inputs_text

ORDER = 11
HEAD = (
    "SKU",
    "GPUs",
    "fails every",
    "save every",
    "time that trains (90 %)",
    "goodput, if it scales so",
)


def section(facts: Facts) -> Section | None:
    """Returns rows for jobs of 8 to 16,384 GPUs, and one of all nodes in service, for the SKU with most of these."""
    if not facts.jobs:
        return None
    most = max(facts.jobs, key=lambda each: each.service)
    sentence = (
        "The expected share of its time that a job trains (ETTR) with the best interval between saves. Made from "
        f"{'; '.join(inputs_text(most.inputs))}. Published by others: {'; '.join(PUBLISHED)}."
    )
    rows = tuple((each.sku, *row) for each in facts.jobs for row in _rows(each))
    return Section("Jobs", sentence, HEAD, rows)


def _rows(jobs: Jobs) -> list[tuple[str, ...]]:
    sizes = sorted({*SIZES, jobs.service * jobs.inputs.gpus_a_node})
    shown = [forecast_view(each) for each in forecast(jobs.inputs, sizes)]
    return [(each.gpus, each.mttf, each.interval, each.ettr, each.goodput) for each in shown]
