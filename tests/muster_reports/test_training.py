"""The training of a block in mail, text and page."""

from __future__ import annotations

import dataclasses

import pytest

from muster_criteria.cluster.acceptance.values import Rank
from muster_reports import mail, training_view
from muster_reports.document import PAGE_LIMITS, fits
from muster_reports.limits import Limits
from muster_reports.model import RunReport
from muster_reports.page import render_page
from tests.muster_reports.trainings import member, training


@pytest.fixture
def report(samples: dict[str, RunReport]) -> RunReport:
    return dataclasses.replace(samples["cpu_pass"], training=training())


def test_mail_text_and_page_have_every_figure_rank_and_job(report: RunReport) -> None:
    assert report.training is not None
    rendered = mail.render(report)
    for shown in (rendered.html, render_page(report), " ".join(rendered.text.split())):
        for line in (*report.training.lines, *report.training.checkpoints):
            assert line.what.partition("'")[0] in shown
        assert all(f"{each.gpus:,}" in shown for each in report.training.forecast)
        assert "gpu-0004 gpu1" in shown
        assert "throttled for 212 s" in shown
    assert fits(rendered.html)


def test_a_report_without_a_training_has_no_such_section(samples: dict[str, RunReport]) -> None:
    assert "What a job will get" not in mail.render(samples["cpu_pass"]).html


def test_a_forecast_that_is_assumed_in_part_says_so() -> None:
    assert training_view.of(training(), PAGE_LIMITS).training.inputs.measured
    bare = training_view.of(training(member("n1", checkpoints=False, faults=False)), PAGE_LIMITS)
    assert not bare.training.inputs.measured
    assert sum("not measured" in each for each in bare.inputs) == 2


@pytest.mark.parametrize(("seconds", "shown"), [(163.8, "164 s"), (1234.0, "1,234 s"), (0.0314, "0.0314 s")])
def test_a_long_step_is_written_as_any_other_figure(seconds: float, shown: str) -> None:
    rank = Rank("n1", "gpu0", seconds, None, None, None)
    assert training_view.of(dataclasses.replace(training(), ranks=(rank,)), PAGE_LIMITS).ranks[0].compute == shown


def test_a_thousand_ranks_still_make_a_mail(report: RunReport) -> None:
    many = training(*(member(f"gpu-{at:04d}", gpus=8) for at in range(127)), member("gpu-9999", gpus=8, slow="gpu3"))
    rendered = mail.render(dataclasses.replace(report, training=many))
    assert fits(rendered.html)
    assert "gpu-9999 gpu3" in rendered.html, "the straggler comes first"
    few = training_view.of(many, Limits(rows=5, full=1, items=1, first_screen=1, chars=40))
    assert (len(few.ranks), few.more_ranks) == (5, 1019)
