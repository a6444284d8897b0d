"""The templates of reports, digests and pages, with what all of them may use."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from muster_criteria.words import listed
from muster_reports.text import clean, wrap


def environment(package: str) -> Environment:
    """The templates of ``package``: all but plain text escape their values, and a name without a value is an error."""
    made = Environment(
        loader=PackageLoader(package), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=lambda name: not (name or "").endswith(".txt.j2"), keep_trailing_newline=True,
    )  # fmt: skip
    made.filters |= {"clean": clean, "wrap": wrap, "listed": listed}
    return made
