"""The digest's figures against hand-counted ones."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.cluster.goodput import ASSUMED_SAVE, Input, Inputs
from muster_reports import document
from muster_reports.digest import numbers as numbers_of
from muster_reports.digest import render
from muster_reports.digest.facts import (
    OUT,
    SERVING,
    Escapes,
    Facts,
    Fault,
    Jobs,
    Move,
    Node,
    Offender,
    Pool,
    Repair,
    Run,
)

SINCE = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
UNTIL = SINCE + datetime.timedelta(days=7)


def at(hours: float) -> datetime.datetime:
    return SINCE + datetime.timedelta(hours=hours)


def node(name: str, state: str = "production", **changes: object) -> Node:
    return dataclasses.replace(Node(name, "h100", "r1", state, at(-1000), at(100)), **changes)


def facts(*nodes: Node, **changes: object) -> Facts:
    return dataclasses.replace(Facts(SINCE, UNTIL, {each.name: each for each in nodes}, [], [], [], {}), **changes)


def section(found: Facts, title: str) -> str:
    """The section's sentence and cells, in one line; "" if it is left out."""
    made = [each for each in render.all_sections(found) if each.title == title]
    for each in made:
        assert not each.rows or bool(each.columns) == (title in render.titles()), "offered exactly if it lists rows"
    return " | ".join([made[0].sentence, *(cell for row in made[0].rows for cell in row)]) if made else ""


def test_hours_are_counted_from_moves_and_from_where_a_node_stood_before_them() -> None:
    moves = [Move("a", at(68), "production", "quarantine", "x"), Move("a", at(100), "quarantine", "registered", "x")]
    found = facts(node("a", "registered"), node("b"), node("c", added_at=at(160)), moves=moves)
    assert found.hours_in(SERVING) == {"a": 68.0, "b": 168.0, "c": 8.0}
    assert found.hours_in(OUT) == {"a": 32.0}


def test_interruptions_have_the_exact_poisson_interval() -> None:
    """Five events: 1.970 to 10.513 at 90 % (Garwood 1936)."""
    moves = [Move(f"n{number}", at(0), "production", "quarantine", "x") for number in range(5)]
    nodes = [node(f"n{number}", "quarantine") for number in range(5)] + [node(f"m{number}") for number in range(100)]
    (made,) = [each for each in render.all_sections(facts(*nodes, moves=moves)) if each.title == "Interruptions"]
    times, hours, mean, least, most = numbers(made.rows[0][1:])
    assert (times, hours, mean) == (5, 16800, 16800 // 5)
    assert (least, most) == pytest.approx((16800 / 10.513, 16800 / 1.970), rel=0.001)


def test_time_to_failure_ends_at_a_nodes_first_failed_test() -> None:
    """Node a fails at 60 h and again at 120 h, b is withdrawn by a person at 30 h, c serves throughout."""
    moves = [
        Move("b", at(30), "production", "triage", "a person"),
        Move("a", at(60), "production", "quarantine", "", failed=True),
        Move("a", at(90), "quarantine", "production", ""),
        Move("a", at(120), "production", "quarantine", "", failed=True),
    ]
    found = facts(node("a", "quarantine"), node("b", "triage"), node("c"), moves=moves)
    (made,) = [each for each in render.all_sections(found) if each.title == "Interruptions"]
    assert numbers(made.rows[0][1:3]) == [3, 60 + 30 + 30 + 168]
    assert numbers(made.rows[1][1:3]) == [1, 60 + 30 + 168]


def numbers(cells: tuple[str, ...]) -> list[int]:
    return [int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", " ".join(cells))]


def test_delivery_is_from_enrolment_to_production() -> None:
    nodes = [node(f"n{hours}", added_at=at(0)) for hours in range(1, 22)]
    delivered = {f"n{hours}": at(hours) for hours in range(1, 22)}
    text = section(facts(*nodes, delivered=delivered), "Delivered")
    assert "11 h 0 min (median), 95 % within 20 h 0 min" in text
    assert text.index("n21") < text.index("n20")


def test_failures_are_ranked_and_each_node_counts_once() -> None:
    faults = [Fault("a", "GPU", "gpu0", "r"), Fault("a", "GPU", "gpu1", "r"), Fault("b", "cooling", "fan", "r")]
    text = section(facts(node("a"), node("b", rack="r2"), faults=faults), "Failed")
    assert text.startswith("2 nodes failed a test")
    assert "SKU | h100 | 2 of 2 | a" in text
    assert "suspected | GPU | 1 | a" in text


def test_a_bar_has_its_length_as_an_attribute_which_mail_programs_without_css_boxes_read() -> None:
    nodes = [node(f"n{number}", sku="h100" if number else "l4") for number in range(300)]
    faults = [Fault(each.name, "GPU", "gpu0", "r") for each in nodes]
    html = render.render(facts(*nodes, faults=faults), "", simulated=False).html
    bars = [bar for each in render.all_sections(facts(*nodes, faults=faults)) for bar in each.bars]
    widths = [int(each) for each in re.findall(r'<table role="presentation" width="(\d+)%"', html)]
    assert widths == [max(1, round(100 * each)) for each in bars]
    assert {1, 100} <= set(widths)


def test_failures_are_ranked_by_vendor_and_firmware_beside_the_nodes_alike() -> None:
    bios = {"vbios": "1.2"}
    faults = [Fault("a", "GPU", "gpu0", "r", "acme", bios), Fault("b", "GPU", "gpu0", "r")]
    nodes = [node("a", vendor="acme", versions=bios), node("b"), node("c", vendor="acme", versions=bios)]
    text = section(facts(*nodes, faults=faults), "Failed")
    for row in ("vendor | acme | 1 of 2 | a", "vendor | unknown | 1 of 1 | b", "vbios | 1.2 | 1 of 2 | a"):
        assert row in text


def test_retired_nodes_count_only_where_they_failed() -> None:
    nodes = (node("a"), node("b"), node("gone", "retired"))
    one = facts(*nodes, faults=[Fault("a", "GPU", "gpu0", "r")])
    (all_of, _) = numbers_of.by_sku(one)
    assert f"{all_of.nodes} nodes: 0 delivered, 1 failed" in render.render(one, "", simulated=False).text
    assert f"SKU | h100 | 1 of {all_of.nodes} | a" in section(one, "Failed")
    two = facts(*nodes, faults=[*one.faults, Fault("gone", "GPU", "gpu0", "r")])
    assert "3 nodes: 0 delivered, 2 failed" in render.render(two, "", simulated=False).text
    assert "SKU | h100 | 2 of 3 | a" in section(two, "Failed")


def test_a_failure_counts_for_what_the_node_failed_with() -> None:
    """Both nodes failed with the new driver; one went back to the old one, with which another serves."""
    new, old = {"driver": "590"}, {"driver": "580"}
    faults = [Fault(name, "GPU", "gpu0", "r", "acme", new) for name in ("a", "b")]
    nodes = [node("a", vendor="acme", versions=new), node("b", vendor="other", versions=old), node("c", versions=old)]
    text = section(facts(*nodes, faults=faults), "Failed")
    assert "driver | 590 | 2 of 2 | a" in text
    assert "vendor | acme | 2 of 2 | a" in text
    assert not {"580", "other"} & set(text.split(" | "))


def test_returns_are_counted_by_vendor() -> None:
    moves = [Move("a", at(9), "repair", "rma", "gpu3 is dead", vendor="acme", part="gpu")]
    nodes = [node("a", "rma", vendor="acme"), node("b", vendor="acme"), node("c", "rma")]
    text = section(facts(*nodes, moves=moves), "RMA")
    assert "acme | 1 | 1 | 2 | gpu 1 | unknown | 0 | 1 | 1 | " in text


def test_hours_leave_out_retired_nodes() -> None:
    moves = [Move("b", at(84), "production", "retired", "old")]
    found = facts(node("a"), node("b", "retired"), moves=moves)
    (made,) = [each for each in render.all_sections(found) if each.title == "Node-hours"]
    assert made.rows == (("production", "252", "100.0 %"),)
    assert "252" in made.sentence


def test_lost_hours_are_those_since_a_node_was_first_in_production_by_cause() -> None:
    """Node a: 10 h in production, 20 quarantine, 5 repair, 8 registered, 3 intake, 2 qualified, the rest in production.
    Node b was never in production; c came into it at 68 h."""
    path = ["production", "quarantine", "repair", "registered", "intake", "qualified", "production"]
    steps = zip([10, 30, 35, 43, 46, 48], itertools.pairwise(path), strict=True)
    moves = [Move("a", at(when), before, after, "") for when, (before, after) in steps]
    moves.append(Move("c", at(68), "qualified", "production", ""))
    served = {"a": at(-500), "c": at(68)}
    found = facts(node("a"), node("b", "registered"), node("c"), moves=moves, served=served)
    (made,) = numbers_of.by_sku(found)[:1]
    assert made.lost == {"failures": 20.0, "repair": 5.0, "tests": 3.0, "queueing": 10.0}
    assert made.worked == (10 + 168 - 48) + 100
    assert "all | 230 (85.8 %) | 20 (7.5 %)" in section(found, "Lost node-hours")
    assert not section(facts(node("b", "registered")), "Lost node-hours")


STATES = st.sampled_from(["registered", "intake", "qualified", "production", "revalidation", "quarantine", "repair"])


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 168), STATES), max_size=20), st.data())
def test_no_hour_is_counted_twice_or_left_out(steps: list[tuple[int, float, str]], data: st.DataObject) -> None:
    state = {f"n{number}": "registered" for number in range(4)}
    moves = []
    for number, hours, after in sorted(steps, key=lambda step: step[1]):
        moves.append(Move(f"n{number}", at(hours), state[f"n{number}"], after, ""))
        state[f"n{number}"] = after
    nodes = [node(name, now, sku=f"sku{name[1:] in '01'}") for name, now in state.items()]
    served = {name: at(data.draw(st.floats(-10, 167))) for name in ("n0", "n2")}
    whole, *skus = numbers_of.by_sku(facts(*nodes, moves=moves, served=served))
    assert sum(whole.hours.values()) == pytest.approx(4 * 168)
    for of in ("hours", "lost"):
        for name, hours in getattr(whole, of).items():
            assert hours == pytest.approx(sum(getattr(each, of).get(name, 0.0) for each in skus))
    since = sum((UNTIL - max(SINCE, when)).total_seconds() / 3600 for when in served.values())
    assert whole.worked + sum(whole.lost.values()) == pytest.approx(since)


def test_an_inconclusive_or_skipped_run_hides_no_failure_after_a_pass() -> None:
    runs = [
        Run("a", "a__1", "PASS", "", at(1), at(2)),
        Run("a", "a__2", "SKIPPED", "", at(3), at(3)),
        Run("a", "a__3", "FAIL", "slow", at(5), at(6)),
    ]
    found = facts(node("a"), runs=runs)
    assert "a | 3 h 0 min | a__1 | a__3 | slow" in section(found, "Failed after a pass")


def test_each_section_with_numbers_gives_the_command_that_lists_what_it_counts() -> None:
    faults = [Fault("a", "GPU", "gpu0", "r")]
    made = render.render(facts(node("a"), faults=faults, scope="--label=team=x"), "team=x", simulated=False)
    assert "muster digest --rows Failed --until 2026-06-08T00:00:00 --days 7 --label=team=x" in made.text


def test_a_fail_after_a_pass_names_both_tests() -> None:
    runs = [
        Run("a", "a__1", "PASS", "", at(1), at(2)),
        Run("a", "a__2", "FAIL", "gpu3 is slow.", at(5), at(6)),
        Run("b", "b__1", "FAIL", "", at(5), at(6)),
    ]
    text = section(facts(node("a"), node("b"), runs=runs), "Failed after a pass")
    assert "a | 3 h 0 min | a__1 | a__2 | gpu3 is slow." in text
    assert "b__1" not in text


def test_repeat_offenders_are_listed_with_their_mark() -> None:
    offenders = [
        Offender("b", 2, at(11), "memory 2", 1.9),
        Offender("a", 0, None, "", 0.0, "marked as a lemon by Ada on 2026-06-01: it hangs"),
    ]
    text = section(facts(node("a"), node("b"), offenders=offenders), "Repeat offenders")
    assert "b | 2 | memory 2 | 2026-06-01 11:00 UTC | 1.90" in text
    assert "a | 0 |  |  | 0.00 | marked as a lemon by Ada" in text
    assert not section(facts(node("a")), "Repeat offenders")


def test_coverage_names_the_stalest() -> None:
    text = section(facts(node("a"), node("b", last_pass=None), node("c", last_pass=at(-300))), "Coverage")
    assert text.startswith("1 of 3 nodes in service passed each stage in the last 7 days.")
    assert text.index("b | r1 | never") < text.index("c | r1")


def test_a_simulated_digest_is_marked_and_text_from_outside_stays_text() -> None:
    run = Run("a", "a__1", "PASS", "", at(1), at(2)), Run("a", "a__2", "FAIL", "<script>\x1b[2J", at(5), at(6))
    made = render.render(facts(node("a", rack="<b>"), runs=run), "<i>", simulated=True)
    assert "[simulated]" in made.subject
    for text in (made.html, made.text):
        assert "Simulated nodes" in text
        assert "\x1b" not in text
    assert not re.search(r"<(script|b|i)>", made.html)
    assert len(made.html) < 90_000


def test_no_digest_is_clipped_however_many_rows_it_has() -> None:
    escapes = [Escapes("standard", "burn_in", f"memory {number}", 1, 10, 100.0, 5.0, 400.0) for number in range(400)]
    made = render.render(facts(node("a"), escapes=escapes), "", simulated=False)
    assert document.fits(made.html)
    assert "more: <code>muster digest --until 2026-06-08T00:00:00 --days 7</code>" in made.html
    assert "memory 399" in made.text


def test_an_empty_fleet_has_a_digest() -> None:
    assert "0 nodes" in render.render(facts(), "", simulated=False).text


def test_spares_are_shown_by_sku() -> None:
    pools = [Pool("h100", 256, 20, 140, 5.5, 7.0, 25, 200), Pool("b200", 8, 0, 0, 5.5, 7.0, 3, 0)]
    assert "h100 | 256 | 140 | 5.5 days | 25 | 20 | 200 nodes" in section(facts(node("a"), pools=pools), "Spares")
    assert not section(facts(node("a")), "Spares")


def test_jobs_are_forecast_up_to_all_nodes_in_service_and_inputs_are_named() -> None:
    rate = Input(4.3e-3, True, "9 failures", 2e-3, 8e-3)
    inputs = Inputs(ASSUMED_SAVE, Input(48.0, True, "3 earlier blocks"), rate, 8)
    own = dataclasses.replace(inputs, restart=Input(61.0, True, "its own blocks"))
    found = facts(node("a"), jobs=[Jobs("h100", 100, inputs), Jobs("b200", 2, own)])
    text = section(found, "Jobs")
    for gpus in ("8", "256", "800"):
        assert f"h100 | {gpus} | " in text
    assert "h100 | 1,024" not in text
    assert "its own blocks" in text.partition("For b200: ")[2]
    assert "time that trains" in render.render(found, "", simulated=False).text
    assert "not measured: assumed" in text
    assert "measured: 9 failures" in text
    assert not section(facts(node("a")), "Jobs")


def test_reliability_is_shown_by_sku_where_there_are_several() -> None:
    moves = [Move("a", at(60), "production", "quarantine", "", failed=True)]
    found = facts(node("a", "quarantine"), node("b"), node("c", sku="b200"), moves=moves)
    (made,) = [each for each in render.all_sections(found) if each.title == "Interruptions"]
    assert [(row[0].partition(", ")[2], *row[1:3]) for row in made.rows] == [
        ("", "1", "396"), ("", "1", "396"), ("b200", "0", "168"), ("b200", "0", "168"), ("h100", "1", "228"),
        ("h100", "1", "228"),
    ]  # fmt: skip


def test_a_repair_that_lasts_makes_the_tail_longer_and_no_repair_is_none() -> None:
    """Three took 1, 2 and 3 hours; with two that last since 100 hours, half were back within 3 hours."""
    over = [Repair("a", "memory", at(0), at(hours)) for hours in (1, 2, 3)]
    lasting = [Repair("b", "links", at(68), None)] * 2
    found = section(facts(node("a"), repairs=over), "Repairs")
    assert "all | 3 | 2 h 0 min | 3 h 0 min | 0" in found
    found = section(facts(node("a"), node("b"), repairs=[*over, *lasting]), "Repairs")
    assert "all | 5 | 3 h 0 min | not known yet | 2" in found
    assert "links | 2 | not known yet | not known yet | 2" in found
    assert not section(facts(node("a")), "Repairs")


def test_availability_leaves_out_what_never_served() -> None:
    moves = [Move("a", at(84), "production", "quarantine", "")]
    found = facts(node("a", "quarantine"), node("b", "registered"), moves=moves)
    assert "50.00 %" in section(found, "Node-hours")


def test_availability_is_whole_only_where_nothing_was_lost() -> None:
    nodes = [node(f"n{number}") for number in range(1000)]
    moves = [Move("n0", at(84), "production", "quarantine", ""), Move("n0", at(85), "quarantine", "production", "")]
    assert "99.99 %" in section(facts(*nodes, moves=moves), "Node-hours")
