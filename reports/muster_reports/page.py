"""The same report as one self-contained HTML file: for saving to disk, or for showing inside Airflow."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from muster_reports import document
from muster_reports.charts import Chart
from muster_reports.mail import charts_of
from muster_reports.model import RunReport
from muster_reports.view import build


def render_page(report: RunReport, drawn: Sequence[Chart] | None = None) -> str:
    """A complete HTML document: images inside, longer lists than the mail's, nothing loaded from outside.

    ``drawn``: of ``mail.charts_of``, if they are drawn already.
    """
    drawn = charts_of(report) if drawn is None else drawn
    images = {chart.series: f"data:image/png;base64,{base64.b64encode(chart.png).decode('ascii')}" for chart in drawn}
    frame = document.Frame(images, "in the exported result", "The whole result: muster export", page=True)
    return document.html(build(report, document.PAGE_LIMITS), drawn, frame)
