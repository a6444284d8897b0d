"""The controller's metrics, from the collector that serves them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from muster.api import metrics
from muster.model.figures import FleetFigures, Waiting
from tests.docs.reference.markdown import code, head, table

ABOUT = """`/muster-api/metrics` of Airflow's API server shows the fleet in the OpenMetrics format to callers that
have the token ([deploying](../deploying.md#metrics)). Figures of the last 24 hours are gauges, since retention
deletes runs and totals could fall. Durations are gauge histograms: `_bucket`, `_gcount`, `_gsum`. The time of a
node's last `PASS` has one series a node, since an age would change at each scrape and a time seldom does."""


EMPTY = Waiting(counts={}, since={})
NOTHING = FleetFigures(
    at=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), nodes=(), breakers={}, findings={}, corrupting={},
    stage_durations=(), run_durations=(), controller_faults={}, give_back=(), tests=EMPTY, mails=EMPTY, parked=0,
    changes=EMPTY, differences=Waiting(counts={(): 0}, since={}), audit=(),
)  # fmt: skip
"""Which metrics there are does not depend on the fleet."""


def families() -> Iterator[tuple[str, tuple[str, ...], str]]:
    """(name, labels, meaning) of every metric."""
    for family in metrics.Fleet(NOTHING).collect():
        yield family.name, tuple(vars(family)["_labelnames"]), family.documentation
    yield metrics.NODE_METRIC, ("node", "rack", "state"), metrics.NODE_TEXT


def page() -> str:
    """docs/reference/metrics.md."""
    rows = [(code(name), ", ".join(labels), text) for name, labels, text in families()]
    return head("Metrics", ABOUT) + "\n" + table(("metric", "labels", "meaning"), rows)
