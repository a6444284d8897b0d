"""Fixtures of the criteria's tests: the shipped SKUs, and healthy results to spoil."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from muster_criteria.limits import Limit
from muster_criteria.skus import Sku, load_sku
from tests.muster_criteria.nodes import Case, MakeCase, healthy_raw


@pytest.fixture(scope="session")
def cpu_generic() -> Sku:
    return load_sku("cpu-generic")


@pytest.fixture(scope="session")
def h100() -> Sku:
    return load_sku("h100-sxm-8")


@pytest.fixture(scope="session")
def case(cpu_generic: Sku, h100: Sku) -> MakeCase:
    """case("thermal", "h100-sxm-8") is a healthy result to spoil; every call gives a fresh one."""
    skus = {sku.name: sku for sku in (cpu_generic, h100)}
    made: dict[tuple[str, str, str], dict[str, Any]] = {}

    def make(stage: str, sku: str = "h100-sxm-8", level: str = "demo") -> Case:
        key = (sku, stage, level)
        if key not in made:
            made[key] = healthy_raw(skus[sku], stage, level)
        return Case(skus[sku], copy.deepcopy(made[key]))

    return make


@pytest.fixture(scope="session")
def make_limit() -> Callable[..., Limit]:
    """A limit with the keys that are not the point of a test filled in."""

    def make(**keys: Any) -> Limit:
        return Limit.model_validate({"unit": "count", "source": "for a test", "date": "2026-11-21"} | keys)

    return make
