"""What a programme asks for in neutral terms: families name the metrics, and what no family names is missed."""

from __future__ import annotations

import pytest

from muster_criteria.sku_files.programme import Need, needs
from muster_criteria.sku_files.shown import both, with_shown
from muster_criteria.sku_files.skus import load_sku

LINKS = {"metric": "nvlink_active", "devices": "each gpu"}
TERMS = {"memory_repair", "links", "throttling", "self_report", "settings", "software"}


def of(sku: str, stage: str = "intake") -> dict[str, Need]:
    return {need.requirement.metric: need for need in needs(load_sku(sku), stage, "demo")}


def test_a_term_becomes_what_each_family_shows_it_by() -> None:
    shows = both(both({}, {"inventory": {"links": [LINKS]}}), {"inventory": {"links": [{"metric": "fabric_state"}]}})
    plan = {"probes": {"inventory": {"shows": ["links"], "require": [{"metric": "vbios"}]}}}
    made = with_shown({"stages": {"intake": plan}}, shows)
    assert made["stages"]["intake"]["probes"]["inventory"] == {
        "require": [{"metric": "vbios"}, LINKS, {"metric": "fabric_state"}]
    }
    assert "shows" in plan["probes"]["inventory"], "the programme's file is shared by SKUs"


def test_a_term_that_no_family_shows_is_required_and_never_measured() -> None:
    nvidia, other = of("h100-sxm-8"), of("mi300x-8")
    assert not TERMS & set(nvidia)
    assert set(other) >= TERMS
    assert not any(other[term].requirement.shown for term in TERMS)


def test_a_model_without_a_programmes_devices_needs_no_exceptions() -> None:
    assert load_sku("mi300x-8").absent == ()


@pytest.mark.parametrize("wrong", [[], {"inventory": []}, {"inventory": {"links": "nvlink_active"}}])
def test_what_is_no_map_of_requirements_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="shows"):
        both({}, wrong)


@pytest.mark.parametrize("odd", [{}, {"stages": 1}, {"stages": {"intake": 1}}, {"probes": {"a": 1}}])
def test_an_odd_programme_is_left_to_the_model_to_refuse(odd: dict[str, object]) -> None:
    assert with_shown(odd, {}) == odd
