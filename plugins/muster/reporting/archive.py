"""The archive of full reports: one HTML file for each report, in a folder by month."""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from muster import ownership
from muster.reporting import bundles
from muster.settings import settings
from muster_node.agent.jobdir import atomic_write
from muster_reports.charts import Chart
from muster_reports.model import RunReport

log = logging.getLogger(__name__)

SUFFIX = ".muster.html"
"""Retention deletes no file with another name: the folder may be shared."""


def keep(report: RunReport, drawn: Sequence[Chart] | None = None) -> str:
    """Write the full report as one file. Returns its path; "" if the folder cannot be written.

    The same finished run replaces its own file. ``drawn``: the report's charts, if they are drawn already.
    """
    from muster_reports import mail, page

    node = re.sub(r"[^A-Za-z0-9-]", "_", report.node)[:60]
    name = f"{node}_{report.verdict}_{report.ended_at:%Y%m%dT%H%M%SZ}_{mail.report_id_of(report)[:12]}{SUFFIX}"
    path = settings().archive_folder / f"{report.ended_at:%Y-%m}" / name
    try:
        ownership.folder(path.parent)
        atomic_write(path, page.render_page(report, drawn).encode("utf-8", "replace"))
        ownership.give(path)
    except OSError as error:
        log.warning("the full report is not archived (%s); give MUSTER_ARCHIVE a folder that can be written", error)
        return ""
    return str(path)


def expire(now: datetime.datetime, cited: Collection[str] = (), *, dry_run: bool = False) -> int:
    """Delete reports and bundles of evidence older than MUSTER_RETENTION_ARCHIVE_DAYS at ``now``, or only count them;
    returns how many. ``cited``: the paths of bundles that open incidents cite, which are kept.
    """
    days, folder = settings().retention_archive_days, settings().archive_folder
    if not days:
        return 0
    last = (now - datetime.timedelta(days=days)).timestamp()
    deleted, kept = 0, {Path(each).name for each in cited}  # the folder may have been moved
    # With the drafts of a writer that was killed.
    for path in (*folder.glob(f"*/*{SUFFIX}*"), *folder.glob(f"*/*{bundles.SUFFIX}*")):
        try:
            if path.name not in kept and path.lstat().st_mtime < last:
                if not dry_run:
                    path.unlink()
                deleted += 1
        except OSError as error:
            log.warning("the archived report %s cannot be deleted: %s", path, error)
    return deleted
