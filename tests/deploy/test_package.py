"""What ``pip install`` takes along: an installed Muster has the data files that a checkout has."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import muster
import muster_node

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, SETUPTOOLS = PYPROJECT["project"], PYPROJECT["tool"]["setuptools"]


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


def imported(*folders: str) -> set[str]:
    """The top-level names that the code in these folders imports, without the standard library and our packages."""
    names = set()
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return {name for name in names - sys.stdlib_module_names if not name.startswith("muster")}


def undeclared(names: set[str], requirements: list[str]) -> set[str]:
    """The names that no distribution in ``requirements`` brings itself."""
    declared = {re.split(r"[^a-z0-9-]", requirement.lower())[0] for requirement in requirements}
    brought = metadata.packages_distributions()
    return {name for name in names if not declared & {each.lower().replace("_", "-") for each in brought[name]}}


def test_what_the_product_imports_is_declared() -> None:
    """tqdm belongs to Great Expectations, whose progress bars are switched off; pydantic brings pydantic_core.
    celery is imported in ``airflow celery worker`` only, which is there with it."""
    product = imported("plugins/muster", "dags", "reports", "validators/muster_criteria")
    declared = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["kubernetes"]
    assert undeclared(product - {"tqdm", "pydantic_core", "celery"}, declared) == set()
    assert not [each for each in PROJECT["dependencies"] if each.startswith(("psutil", "aiosmtpd"))]
    demo = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["demo"]
    assert undeclared(imported("plugins/muster_demo"), demo) == set()


def test_one_version_shows_everywhere() -> None:
    """The node side has a version of its own, as it is sent to nodes by itself."""
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert {PROJECT["version"], muster.__version__, muster_node.__version__, newest[1]} == {PROJECT["version"]}


PIN = re.compile(r"^([\w.\[\]-]+==\S+)", re.M)


def pins(name: str) -> set[str]:
    return set(PIN.findall((ROOT / name).read_text()))


def test_a_controller_runs_what_was_tested_and_nothing_of_the_tests() -> None:
    controller = pins("requirements-controller.txt")
    assert {each.partition("==")[0] for each in controller} > {"celery", "kubernetes", "apache-airflow-core"}
    assert controller - pins("requirements.txt") == set()
    assert not [each for each in controller if each.startswith(("pytest", "mypy", "aiosmtpd"))]


def test_each_package_is_pinned_and_its_hash_is_required() -> None:
    for file in ("requirements.txt", "requirements-controller.txt"):
        lines = (ROOT / file).read_text().replace("\\\n", " ").splitlines()
        packages = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        assert len(packages) > 100
        unpinned = [line for line in packages if not re.match(r"\S+==\S+( ; .*?)?\s+--hash=sha256:[0-9a-f]{64}", line)]
        assert unpinned == []
    texts = [(ROOT / "Makefile").read_text(), *((path.read_text()) for path in (ROOT / "docs").glob("*.md"))]
    installs = [line for text in texts for line in text.splitlines() if re.search(r"-r \S*requirements\S*\.txt", line)]
    assert len(installs) >= 3
    assert [line for line in installs if "--require-hashes" not in line] == []


def test_nothing_unpinned_builds_the_package() -> None:
    """pip otherwise downloads the newest setuptools, and runs it."""
    assert PYPROJECT["build-system"]["requires"] == PYPROJECT["dependency-groups"]["build"] == ["setuptools>=77"]
    for file in ("requirements.txt", "requirements-controller.txt"):
        assert any(each.startswith("setuptools==") for each in pins(file))
    text = "".join((ROOT / name).read_text() for name in ("Makefile", "docs/deploying.md"))
    commands = [command.strip(" \\") for command in re.split(r"\n|\|\|", text)]
    ours = [each for each in commands if re.search(r"(pip install|_INSTALL\)).* (\.|/opt/muster)$", each)]
    assert len(ours) == 4
    assert [each for each in ours if "--no-build-isolation" not in each] == []
