"""What ``pip install`` takes along: an installed Muster has the data files that a checkout has."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def data_files() -> set[Path]:
    """All that is no code in the packages, but for pages that are for readers of the source."""
    found = {path for root in SETUPTOOLS["packages"]["find"]["where"] for path in (ROOT / root).rglob("*/*.*")}
    aside = {".py", ".pyc", ".md"}
    return {path for path in found if path.is_file() and path.suffix not in aside and ".egg-info" not in str(path)}


def packaged_files() -> set[Path]:
    return {
        path
        for package, patterns in SETUPTOOLS["package-data"].items()
        for root in SETUPTOOLS["packages"]["find"]["where"]
        for pattern in patterns
        for path in (ROOT / root / package.replace(".", "/")).glob(pattern)
    }


def test_an_installed_package_has_its_data_files() -> None:
    assert data_files(), "no data file was found at all"
    assert {str(path.relative_to(ROOT)) for path in data_files() - packaged_files()} == set()
