"""The last sections of a run's report: each module here has ``ORDER`` and ``section(report, limits)``.

``section`` gets the report with its texts cleaned and cut, and returns None to be left out.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from muster_reports.limits import Limits
from muster_reports.model import RunReport, Section


def all_sections(report: RunReport, limits: Limits) -> Iterable[Section]:
    """The sections that have something to show, in their order."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    for module in sorted(modules, key=lambda module: int(module.ORDER)):
        made: Section | None = module.section(report, limits)
        if made is not None:
            yield made
