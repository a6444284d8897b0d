"""What tests of SKU files share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from muster_criteria.sku_files.skus import SHIPPED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fleet's own folder with a copy of a shipped SKU to spoil."""
    shutil.copytree(SHIPPED, tmp_path / "skus")
    return tmp_path / "skus"
