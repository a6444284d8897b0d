"""Numbers that the pages state are those of the code."""

from __future__ import annotations

import datetime
import math
import re
from pathlib import Path

import pytest

from muster.audit import sinks, stream
from muster.rules.lifecycle.transitions import INCONCLUSIVE_BUDGET
from muster.rules.service import escapes
from muster.store.machines import parts
from muster.store.queues import outbox
from muster_criteria.context import goldens
from muster_criteria.fleet.budget import (
    EFFECT_MIN,
    HEALTHY_FAIL_PER_VISIT,
    HEALTHY_WARN_PER_VISIT,
    RETEST_MIN,
    RETEST_Z,
)
from muster_criteria.sku_files import programme
from muster_criteria.sku_files.skus import SHIPPED, load_sku
from muster_criteria.stage.findings import FINDINGS_MAX
from muster_criteria.stages import STAGES
from muster_node.workloads.under_load.cooling import STEADY_C

DOCS = Path(__file__).parents[2] / "docs"
DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)
LONG_S = programme.test_limit_s(load_sku("h100-sxm-8", (SHIPPED,)), STAGES, "long")
ORDINALS = {3: "third"}


@pytest.mark.parametrize(
    ("page", "stated"),
    [
        ("verdicts", f"A stage keeps {FINDINGS_MAX:,} findings"),
        ("verdicts", f"at most one healthy node in {1 / HEALTHY_FAIL_PER_VISIT:,.0f} failed per visit"),
        ("verdicts", f"at most one healthy node in {1 / HEALTHY_WARN_PER_VISIT:,.0f} shows as much"),
        ("verdicts", f"No distance below {EFFECT_MIN:.0%}".replace("%", " %")),
        ("verdicts", f"tested within {parts.LATELY / DAY:.0f} days"),
        ("verdicts", f"at least {goldens.DEVICES_MIN} GPUs on at least {goldens.NODES_MIN} nodes"),
        ("verdicts", f"the {ORDINALS[INCONCLUSIVE_BUDGET]} in a row sends the node to `triage`"),
        ("science", f"stays within {STEADY_C:g} °C of that mean"),
        ("science", f"an outlier lies above {RETEST_Z}"),
        ("science", f"by at least {RETEST_MIN:.1%} on the side".replace("%", " %")),
        ("numbers", f"within {escapes.WITHIN / DAY:.0f} days after a stage"),
        ("mail", f"tried again for {outbox.NOTIFICATION_AGE / HOUR:.0f} hours"),
        ("deploying", f"{math.ceil(LONG_S / 3600)} hours for a whole test at level `long`"),
        ("audit", f"a batch of up to {stream.BATCH}"),
        ("audit", f"at most {stream.BATCH_BYTES // 1024} KiB"),
        ("audit", f"for {stream.LIMIT_S:.0f} seconds at a time"),
        ("audit", f"`port` ({sinks.SYSLOG_TLS_PORT})"),
    ],
)
def test_a_number_on_a_page_is_the_codes(page: str, stated: str) -> None:
    assert stated in " ".join((DOCS / f"{page}.md").read_text().split())


def test_the_lines_of_each_room_are_about_as_many_as_stated() -> None:
    table = (DOCS / "architecture.md").read_text().partition("## What the lines are for")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| ([\d.]+) \|", table, re.MULTILINE)
    assert len(rows) > 10
    for rooms, stated in rows:
        files = [path for room in re.findall("`(.+?)`", rooms) for path in (DOCS.parent / room).rglob("*.py")]
        lines = sum(len(path.read_text().splitlines()) for path in files)
        assert float(stated) == pytest.approx(lines / 1000, rel=0.1), rooms
