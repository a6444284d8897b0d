"""The heat map of a rail as geometry: a square a cell, low ones marked, names where there is room."""

from __future__ import annotations

import dataclasses
import re

from fastapi import Request
from fastapi.testclient import TestClient

from muster import store
from muster.model.rounds import Outcome, PlannedRound, Side
from muster.model.runs import RunKey
from muster.web import block, heat_map, rendering
from muster_criteria.cluster.fabric.topology import unknown
from muster_criteria.measured import Measured
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.web.conftest import page
from tests.muster_reports.fabrics import fabric

PATH = "/run?dag_id=cluster_qualification&run_id=block"


def test_every_cell_is_a_square_within_the_map_and_its_title_names_both_ends() -> None:
    found = fabric(8, 2)
    for each in heat_map.of(found):
        (matrix,) = (one for one in found.matrices if one.title == each.title)
        assert len(each.squares) == len(matrix.cells)
        assert len({(square.x, square.y) for square in each.squares}) == len(matrix.cells)
        for square, cell in zip(each.squares, matrix.cells, strict=True):
            assert 0 <= square.x < heat_map.SIDE
            assert 0 <= square.y < heat_map.SIDE
            assert cell.sender in square.title
            assert (square.css == "bad") == (cell.wrong or cell.share < heat_map.LOW)


def test_rails_with_low_cells_come_first() -> None:
    maps = heat_map.of(fabric(8, 4))
    assert {maps[0].title, maps[1].title} == {"rail r0", "rail r1"}
    assert [bool(each.low) for each in maps] == [True, True, False, False]


def test_names_are_left_out_where_they_would_cover_each_other() -> None:
    (small,), (large,) = heat_map.of(fabric(8, 1)), heat_map.of(fabric(64, 1))
    assert [name for name, _ in small.names] == [f"gpu-{at:04d}" for at in range(8)]
    assert large.names == ()


def test_a_low_cell_is_not_said_to_be_at_the_share_from_which_it_is_not_low() -> None:
    found = fabric(4, 1, faults=False)
    (matrix,) = found.matrices
    shares = (heat_map.LOW - 0.002, heat_map.LOW, 0.987)
    cells = tuple(dataclasses.replace(cell, share=share) for cell, share in zip(matrix.cells, shares, strict=False))
    (drawn,) = heat_map.of(dataclasses.replace(found, matrices=(dataclasses.replace(matrix, cells=cells),)))
    assert [re.findall(r"([\d.]+) %", each.title) for each in drawn.squares] == [["89.8"], ["90"], ["99"]]
    assert drawn.low == (drawn.squares[0].title,)


def test_round_trips_are_shown_where_they_were_measured() -> None:
    found = fabric(4, 1, faults=False)
    (matrix,) = found.matrices
    cells = tuple(dataclasses.replace(cell, delay_us=20.0 + at) for at, cell in enumerate(matrix.cells))
    timed = dataclasses.replace(found, matrices=(dataclasses.replace(matrix, cells=cells),))
    (bare,), (shown,) = heat_map.of(found), heat_map.of(timed)
    assert bare.delay == ""
    last = cells[-1]
    assert f"{last.sender} – {last.receiver}" in shown.delay
    assert "20 µs" in shown.squares[0].title


def test_the_page_of_a_block_shows_parts_notes_and_a_map_for_each_rail(client: TestClient) -> None:
    key, names = RunKey("cluster_qualification", "block"), [f"n{at}" for at in range(8)]
    for name in names:
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
        lease = store.leases.acquire(name, key)
        store.runs.begin(key, name, "short", "x", required_stages=["cluster_validation"])
        fleet.do_stage(lease, "cluster_validation")
        store.runs.finish(key, Verdict.PASS, f"{name} is well.", node=name)
    assert "Fabric" not in page(client, PATH)
    topology = dataclasses.asdict(unknown(names, ["r0", "r1"]))
    store.attempts.keep_block(key, {"topology": topology, "fabric_notes": ["Nothing is known of leaves."]})
    pairs = tuple(zip(names[::2], names[1::2], strict=True))
    store.rounds.plan(key, PlannedRound(1, "same_leaf", pairs, 1, 0))
    for pair in pairs:
        for own, other in (pair, pair[::-1]):
            store.rounds.record(key, 1, Side(own, Outcome.MEASURED, "", _figures(own, other)))
    store.rounds.keep_parts(key, fabric().parts)
    text = page(client, PATH)
    assert "uplinks of leaf-2, rail r0" in text
    assert text.count('<figure class="heat">') == 3
    assert "all rails at once <span" in text
    assert "n1 → n0: 40 Gb/s" in text
    assert "Nothing is known of leaves." in text
    named = re.findall(r"<li>([^<]+ → [^<]+)</li>", text)
    assert len(named) == 2
    assert all("n0" in each for each in named)
    labels = re.findall(r'<text class="label"[^>]*>([^<]+)</text>', text)
    assert sorted(labels) == sorted(names * 6)
    assert text.index("rail r1 <b") < text.index("rail r0 <span")


def test_the_lists_of_a_block_are_shown_whole() -> None:
    names = tuple(f"gpu-{at:04d}.cluster-a.example.org" for at in range(40))
    found = fabric(8, 1)
    found = dataclasses.replace(found, parts=(dataclasses.replace(found.parts[0], touches=names),), matrices=())
    shown = block.Block((), (), (), (), (block.Proof("transport", (("IB", names),)),))
    text = rendering.markup(
        Request({"type": "http"}), "block.html.j2", dag_id="d", run_id="r", at_work=(), block=shown, fabric=found,
        maps=(), training=None, differences=(),
    )  # fmt: skip
    assert text.count(", ".join(names)) == 2


def _figures(own: str, other: str) -> tuple[Measured, ...]:
    return tuple(
        Measured(
            probe="pair_rails", metric="pair_bandwidth", device=f"nic:{rail}", unit="Gb/s",
            value=40.0 if (rail, mode) == ("r1", "alone") and "n0" in (own, other) else 100.0,
            labels={"rail": rail, "mode": mode, "variant": "0", "partner": other},
        )
        for rail in ("r0", "r1")
        for mode in ("alone", "together")
    )  # fmt: skip
