"""The words of reports: next steps, limits of the verdict, and the whole plain text of the samples."""

from __future__ import annotations

import dataclasses
import datetime

import pytest
from syrupy.assertion import SnapshotAssertion

from muster_criteria.model import Coverage, Verdict
from muster_reports import charts
from muster_reports.digest import facts, tables
from muster_reports.digest.numbers import Returned
from muster_reports.digest.sections import coverage
from muster_reports.document import MAIL_LIMITS
from muster_reports.firstscreen import ENDS
from muster_reports.mail import render
from muster_reports.model import RunReport
from muster_reports.view import View, build
from tests.muster_reports.fabrics import fabric

Samples = dict[str, RunReport]
STATES = ("qualified", "production", "revalidation", "registered")


def shown(report: RunReport) -> View:
    return build(report, MAIL_LIMITS[0])


def in_block(report: RunReport) -> RunReport:
    """The report's first stage, as if a block had run it."""
    first = report.stages[0]
    together = dataclasses.replace(first.judgement, stage="cluster_validation")
    return dataclasses.replace(report, stages=(dataclasses.replace(first, judgement=together),))


def test_wording_of_next_steps(samples: Samples, snapshot: SnapshotAssertion) -> None:
    report = samples["cpu_pass"]
    steps = {
        f"{verdict}, now {state}": shown(dataclasses.replace(report, verdict=verdict, state_after=state)).next_steps
        for verdict in Verdict
        for state in STATES
    }
    left = dataclasses.replace(report, state_before="production", state_after="qualified", why_left="f-1 is open")
    for verdict in (Verdict.WARN, Verdict.PASS):
        steps[f"{verdict}, out of production"] = shown(dataclasses.replace(left, verdict=verdict)).next_steps
    for verdict in (Verdict.PROVISIONAL, Verdict.PASS):
        withdrawn = dataclasses.replace(report, verdict=verdict, state_after="quarantine")
        steps[f"{verdict}, withdrawn meanwhile"] = shown(withdrawn).next_steps
    steps["passed in a block"] = shown(in_block(report)).next_steps
    steps["a spare that passed in a block"] = shown(dataclasses.replace(in_block(report), spare=True)).next_steps
    for state in ("production", "registered"):
        held = dataclasses.replace(samples["hot_gpu"], why_held="5 of 25 nodes were withdrawn", state_after=state)
        steps[f"held, now {state}"] = shown(held).next_steps
    steps |= {name: shown(samples[name]).next_steps for name in ("missing_gpu", "long_lists", "empty")}
    assert steps == snapshot


def test_wording_of_the_limits_of_a_verdict(samples: Samples, snapshot: SnapshotAssertion) -> None:
    report = samples["cpu_pass"]
    first = report.stages[0]
    bare = dataclasses.replace(first.judgement, coverage=Coverage(0, 0, 0))
    reports = {
        "hot_gpu": samples["hot_gpu"],
        "missing_gpu": samples["missing_gpu"],
        "shadow": dataclasses.replace(report, shadow=True),
        "forced": dataclasses.replace(report, forced=""),
        "held": dataclasses.replace(report, why_held="the breaker is open", state_after="registered"),
        "nothing required": dataclasses.replace(report, stages=(dataclasses.replace(first, judgement=bare),)),
        "no result": dataclasses.replace(report, stages=(), not_run=()),
        **{end: dataclasses.replace(report, stages=(dataclasses.replace(first, end=end),)) for end in ENDS},
    }
    limits = {
        name: [(each.code, each.sentence, each.items) for each in shown(of).cautions] for name, of in reports.items()
    }
    assert limits == snapshot
    assert {code for found in limits.values() for code, *_ in found} == {
        "held", "forced", "shadow", "waivers", "unfinished", "nothing_required", "unmeasured", "unjudged", "not_run",
        "no_result",
    }  # fmt: skip


def test_wording_of_what_rounds_found(snapshot: SnapshotAssertion) -> None:
    found, nothing = fabric(), fabric(faults=False)
    hidden = [dataclasses.replace(each, complete=False) for each in (found, nothing)]
    assert [each.headline for each in (found, nothing, dataclasses.replace(nothing, rounds=1), *hidden)] == snapshot


def test_wording_of_the_numbers(snapshot: SnapshotAssertion) -> None:
    now = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    served = facts.Node("a", "h100", "r1", "production", now, now)
    sections = [
        tables.spares([facts.Pool("h100", 1, 1, 2, 4.5, 7.0, 1, 1)]), tables.returned([Returned("acme", "gpu", 2)]),
        coverage.section(facts.Facts(now - coverage.WEEK, now, {"a": served}, [], [], [], {})),
    ]  # fmt: skip
    assert [(each.sentence, each.rows) for each in sections if each] == snapshot


@pytest.mark.parametrize("name", ["cpu_pass", "missing_gpu", "hot_gpu", "empty"])
def test_wording_of_the_mail(
    name: str, samples: Samples, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "draw_charts", lambda report: ())
    sample = render(samples[name])
    assert f"{sample.subject}\n\n{sample.text}" == snapshot
