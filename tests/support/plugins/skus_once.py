"""SKU files of the same text are checked once in a process, where a conftest imports the fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster_criteria.sku_files import lint, skus
from muster_criteria.sku_files.model import Problem, Sku


@pytest.fixture(scope="session", autouse=True)
def skus_checked_once() -> Iterator[None]:
    """A SKU that was read has the digest of all its files. Each task of a node checks it, for 7 ms."""
    found: dict[tuple[object, ...], list[Problem]] = {}

    def problems_of(sku: Sku) -> list[Problem]:
        if (key := (sku.file, sku.digest, *(each.revision for each in sku.learned))) not in found:
            found[key] = lint.problems_of(sku)
        return list(found[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skus, "problems_of", problems_of)
        yield
