"""The rounds of a block in mail and page: the table of parts, the notes, and one picture of the rails."""

from __future__ import annotations

import dataclasses
import io

import pytest
from PIL import Image

from muster_reports import fabric_map, mail, readers
from muster_reports.charts import PNG_BYTES_MAX
from muster_reports.document import fits
from muster_reports.model import RunReport
from muster_reports.page import render_page
from tests.muster_reports.fabrics import fabric
from tests.muster_reports.trainings import training


@pytest.fixture
def report(samples: dict[str, RunReport]) -> RunReport:
    return dataclasses.replace(samples["cpu_pass"], fabric=fabric())


def test_the_mail_has_every_part_the_notes_and_the_picture(report: RunReport) -> None:
    rendered = mail.render(report)
    assert report.fabric is not None
    for part in report.fabric.parts:
        assert part.title in rendered.html
        assert part.title in " ".join(rendered.text.split())
    for note in report.fabric.notes:
        assert note in rendered.html
    assert [cid for cid in rendered.images if cid.startswith("fabric.")]
    assert fits(rendered.html)


def test_a_report_without_rounds_has_no_such_section(samples: dict[str, RunReport]) -> None:
    rendered = mail.render(samples["cpu_pass"])
    assert "Fabric" not in rendered.html
    assert not [cid for cid in rendered.images if cid.startswith("fabric.")]


def test_rounds_that_found_nothing_say_so(report: RunReport) -> None:
    assert "no part was found" in render_page(dataclasses.replace(report, fabric=fabric(faults=False)))


def test_a_reader_from_whom_parts_are_kept_does_not_read_that_none_was_found(report: RunReport) -> None:
    found = fabric()
    path = dataclasses.replace(report, fabric=dataclasses.replace(found, parts=found.parts[2:]))
    seen, kept = readers.without(path, {"gpu-0000"}).fabric, readers.without(path, {"gpu-0000", "gpu-0001"}).fabric
    assert seen is not None
    assert kept is not None
    assert (len(seen.parts), seen.complete) == (1, True)
    assert (len(kept.parts), kept.complete) == (0, False)
    assert kept.headline in render_page(dataclasses.replace(report, fabric=kept))


def test_who_may_not_see_the_other_nodes_gets_none_of_their_parts_names_and_rails(report: RunReport) -> None:
    """Of parts one is of gpu-0005, one touches gpu-0004 to gpu-0007, and one gpu-0000 and gpu-0001."""
    others = {f"gpu-000{at}" for at in range(8) if at != 5}
    shown = readers.without(dataclasses.replace(report, fabric=fabric(), training=training()), others)
    assert shown.fabric is not None
    assert shown.training is not None
    assert [part.touches for part in shown.fabric.parts] == [("gpu-0005",)] * 2
    assert not shown.fabric.complete
    assert "another node" in render_page(shown)
    assert not [name for name in others if name in repr(shown)]
    assert not shown.training.ranks
    assert fabric_map.draw(shown.fabric) is None


@pytest.mark.parametrize(("nodes", "rails"), [(2, 1), (8, 2), (64, 8), (256, 8)])
def test_the_picture_stays_small_whatever_the_block(nodes: int, rails: int) -> None:
    chart = fabric_map.draw(fabric(nodes, rails, faults=nodes > 5))
    assert chart is not None
    assert len(chart.png) <= PNG_BYTES_MAX
    assert Image.open(io.BytesIO(chart.png)).width >= chart.width


def test_it_names_the_worst_of_each_rail_for_who_sees_no_pictures() -> None:
    chart = fabric_map.draw(fabric())
    assert chart is not None
    assert "wrong bytes" in chart.summary
    assert "gpu-0005" in chart.summary


def test_without_a_cell_there_is_no_picture() -> None:
    found = fabric()
    empty = tuple(dataclasses.replace(each, cells=()) for each in found.matrices)
    assert fabric_map.draw(dataclasses.replace(found, matrices=empty)) is None


def test_the_low_rails_are_drawn_where_not_all_fit() -> None:
    found = fabric(8, 12)
    at_once = dataclasses.replace(found.matrices[0], rail="")
    chart = fabric_map.draw(dataclasses.replace(found, matrices=(*found.matrices, at_once)))
    assert chart is not None
    assert "4 more rails" in chart.summary
    assert "rail r1:" in chart.summary
    assert chart.summary.startswith("all rails at once:")
