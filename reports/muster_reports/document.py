"""Turns a report into HTML and plain text: one body template for mail and page, one text template for terminals."""

from __future__ import annotations

import dataclasses
import functools
import quopri
from collections.abc import Mapping, Sequence
from importlib import metadata

from jinja2 import Environment

from muster_criteria.model import Severity, Verdict
from muster_reports.charts import Chart
from muster_reports.environment import environment
from muster_reports.limits import Limits
from muster_reports.view import View

COLOUR = {
    Verdict.PASS: "#17693a",
    Verdict.WARN: "#8a5300",
    Verdict.PROVISIONAL: "#1d5a8a",
    Verdict.INCONCLUSIVE: "#54507e",
    Verdict.FAIL: "#b42318",
    Verdict.SKIPPED: "#4b5563",
    None: "#4b5563",
}
SEVERITY_COLOUR = {Severity.CRITICAL: "#b42318", Severity.WARNING: "#8a5300", Severity.INFO: "#4b5563"}

HTML_BYTES_MAX = 90_000
"""Largest size in bytes of the HTML part as it is sent. Gmail cuts at 102 KB and hides the rest behind a link."""

MAIL_LIMITS = (
    Limits(rows=40, full=8, items=8, first_screen=4, chars=400),
    Limits(rows=24, full=6, items=5, first_screen=3, chars=300),
    Limits(rows=12, full=4, items=4, first_screen=3, chars=160),
    Limits(rows=9, full=4, items=3, first_screen=3, chars=120),
    Limits(rows=6, full=3, items=3, first_screen=2, chars=80),
    Limits(rows=3, full=1, items=1, first_screen=1, chars=40),
)
"""Tried in order until the HTML fits."""

PAGE_LIMITS = Limits(rows=2000, full=40, items=200, first_screen=20, chars=2000)


@dataclasses.dataclass(frozen=True)
class Frame:
    """Differences between mail and page: the places of images and of cut-off entries. ``images``: series → address for
    <img src>. ``rest``: ends "and 12 more …": where the reader finds the whole list. ``attachment``: the footer's
    sentence that says where the machine-readable result is.
    """

    images: Mapping[str, str]
    rest: str
    attachment: str
    page: bool = False


def html(view: View, charts: Sequence[Chart], frame: Frame) -> str:
    """The report as an HTML document; loads nothing."""
    return _environment().get_template("report.html.j2").render(view=view, charts=charts, frame=frame)


def fits(rendered: str) -> bool:
    """Returns whether the HTML may be sent: quoted-printable, as ``mail.build_message`` writes it."""
    return len(quopri.encodestring(rendered.encode())) <= HTML_BYTES_MAX


def text(view: View, charts: Sequence[Chart], frame: Frame) -> str:
    """The report as plain text, at most 78 columns wide wherever the words allow."""
    rendered = _environment().get_template("report.txt.j2").render(view=view, charts=charts, frame=frame)
    return rendered.strip("\n") + "\n"


def version() -> str:
    """The version of Muster that made the report."""
    try:
        return metadata.version("muster-fleet")
    except metadata.PackageNotFoundError:
        return "(not installed)"


@functools.cache
def _environment() -> Environment:
    made = environment("muster_reports")
    made.globals |= {"COLOUR": COLOUR, "SEVERITY_COLOUR": SEVERITY_COLOUR, "version": version()}
    return made
