"""A digest as a mail: HTML and plain text, nothing loaded from outside."""

from __future__ import annotations

import functools
import hashlib
import importlib
import pkgutil
import shlex
from types import ModuleType

from muster_reports import document
from muster_reports.digest import sections
from muster_reports.digest.facts import Facts, Section
from muster_reports.environment import environment
from muster_reports.mail import Rendered
from muster_reports.text import aligned, clean, mark, plural

ROWS_MAX = (1000, 40, 20, 10, 5, 2)
"""Rows of a table of the HTML, tried in order until it fits; the plain text has all."""


def all_sections(facts: Facts) -> list[Section]:
    """The sections that have something to show, in their order."""
    made = [module.section(facts) for module in _modules()]
    return [section for section in made if section is not None]


def titles() -> list[str]:
    """The titles of the sections that list what they count, in their order, also of those that have nothing to show."""
    return [module.TITLE for module in _modules() if hasattr(module, "TITLE")]


def _modules() -> list[ModuleType]:
    modules = [
        importlib.import_module(f"{sections.__name__}.{found.name}")
        for found in pkgutil.iter_modules(sections.__path__)
    ]
    return sorted(modules, key=lambda module: int(module.ORDER))


def render(facts: Facts, whose: str, *, simulated: bool) -> Rendered:
    """The digest of a period. ``whose``: the part of the fleet, such as "team=training"; empty: all of it."""
    shown = all_sections(facts)
    period = f"{facts.since:%Y-%m-%d} to {facts.until:%Y-%m-%d}"
    of = clean(whose, 60) if whose else "the fleet"
    title = f"{mark(simulated)}Digest of {of}, {period}"
    failed = {fault.node for fault in facts.faults} & set(facts.nodes)
    withdrawn = len({move.node for move in facts.moves if move.withdrawn} & set(facts.nodes))
    summary = (
        f"{plural(len(failed | facts.present.keys()), 'node')}: {len(facts.delivered)} delivered, {len(failed)} failed "
        f"a test, {withdrawn} withdrawn from service."
    )
    values: dict[str, object] = {
        "aligned": aligned,
        "command": functools.partial(_command, facts),
        "title": title,
        "summary": summary,
        "sections": shown,
        "simulated": simulated,
    }
    key = f"digest-{'simulated' if simulated else 'real'}-{facts.since:%Y-%m-%d}-{facts.until:%Y-%m-%d}"
    if whose:
        key += f"-{hashlib.sha256(whose.encode()).hexdigest()[:8]}"
    templates = environment("muster_reports")
    for most in ROWS_MAX:
        html = templates.get_template("digest.html.j2").render(values, most=most)
        if document.fits(html):
            break
    return Rendered(
        f"[Muster] {title}",
        templates.get_template("digest.txt.j2").render(values),
        html,
        {}, (), key, "digest", (("X-Muster-Report", "digest"),),
    )  # fmt: skip


def _command(facts: Facts, title: str = "") -> str:
    """Returns the command that shows the whole digest, or lists the rows behind the section of that title."""
    days = (facts.until - facts.since).total_seconds() / 86400
    rows = f"--rows {shlex.quote(title)} " if title else ""
    return f"muster digest {rows}--until {facts.until:%Y-%m-%dT%H:%M:%S} --days {days:g} {facts.scope}".strip()
