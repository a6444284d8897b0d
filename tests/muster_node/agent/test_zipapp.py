"""The zipapp for nodes: reproducible, written once, and able to run on Python 3.9 without other packages."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import muster_node
from muster.remote.job import zipapp as agentfile
from muster.remote.job.zipapp import build_agent
from muster_criteria.measured import parse_result
from muster_node import contract
from tests.muster_node.agent.harness import call, plan

NODE_FILES = sorted(Path(muster_node.__file__).parent.rglob("*.py"))

A_PROBE = '''
from muster_node.probe import Metric, Probe


class Added(Probe):
    """One file, dropped in."""

    name = "added"
    stage = "intake"
    doc = "Was not there when the rest was written"
    metrics = {"figure": Metric("GB/s", "a figure")}
    loads = False

    def run(self, context):
        context.emit("figure", "node", value=12)
'''


def python_39() -> str:
    """A Python 3.9, the oldest that nodes have; where this machine has none, the one that runs the tests."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which("python3.9"), *(str(path) for path in sorted(pyenv.glob("versions/3.9.*/bin/python")))]
    return next((path for path in found if path and _is_39(path)), sys.executable)


def _is_39(path: str) -> bool:
    # A version manager's stand-in of that name may have no 3.9 behind it.
    output = subprocess.run([path, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True)
    return output.stdout.strip() == "(3, 9)"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> agentfile.AgentFile:
    return build_agent(tmp_path_factory.mktemp("cache"))


def run(file: Path, *args: str, work: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["MUSTER_WORK"] = str(work)
    command = [python_39(), str(file), *args]
    return subprocess.run(command, env=environment, cwd=work.parent, capture_output=True, text=True, timeout=120)


def test_the_same_sources_give_the_same_bytes_anywhere(built: agentfile.AgentFile, tmp_path: Path) -> None:
    again = build_agent(tmp_path / "other")
    assert again.sha256 == built.sha256
    assert again.path.read_bytes() == built.path.read_bytes()
    assert hashlib.sha256(built.path.read_bytes()).hexdigest() == built.sha256 == built.path.stem


def test_it_is_not_written_again_while_it_is_there(tmp_path: Path) -> None:
    first = build_agent(tmp_path)
    written = first.path.stat().st_ino
    assert build_agent(tmp_path) == first
    assert (first.path.stat().st_ino, [*tmp_path.iterdir()]) == (written, [first.path])


def test_a_damaged_file_is_built_again(tmp_path: Path) -> None:
    first = build_agent(tmp_path)
    first.path.write_bytes(first.path.read_bytes()[:-10])
    assert hashlib.sha256(build_agent(tmp_path).path.read_bytes()).hexdigest() == first.sha256


def test_changed_sources_give_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_agent(tmp_path / "cache")
    changed = tmp_path / "extra.py"
    changed.write_text("x = 1\n")
    sources = agentfile._sources()
    monkeypatch.setattr(agentfile, "_sources", lambda: {**sources, "muster_node/extra.py": changed})
    monkeypatch.setattr(agentfile, "packed", agentfile.packed.__wrapped__)  # as in a process that starts now
    second = build_agent(tmp_path / "cache")
    assert second.sha256 != first.sha256
    assert first.path.exists()


def test_the_zipapp_holds_only_the_node_side_and_the_nvml_bindings(built: agentfile.AgentFile) -> None:
    names = zipfile.ZipFile(built.path).namelist()
    assert "pynvml.py" in names
    assert "muster_node/cli.py" in names
    assert {name.split("/")[0] for name in names} == {"__main__.py", "pynvml.py", "muster_node"}
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_zipapp_excludes_the_simulator(built: agentfile.AgentFile) -> None:
    archive = zipfile.ZipFile(built.path)
    assert [name for name in archive.namelist() if b"muster_simulator" in archive.read(name)] == []
    assert [name for name in archive.namelist() if "simulat" in name] == []


def test_on_the_oldest_python_the_zipapp_measures_this_machine(built: agentfile.AgentFile, tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "plan.json").write_text(plan(call("inventory", 60.0)).to_json())
    done = run(built.path, "run", str(job / "plan.json"), work=tmp_path / "work")
    assert done.returncode == 0, done.stderr
    result = parse_result((job / "result.json").read_bytes())
    assert (result.end, result.probes[0].status) == ("completed", "completed")
    assert result.agent_sha256 == built.sha256
    kernel = next(row.text for row in result.measurements if row.metric == "kernel")
    assert kernel == os.uname().release
    assert "inventory: completed" in done.stdout


def test_a_probe_is_one_file_that_touches_no_other(built: agentfile.AgentFile, tmp_path: Path) -> None:
    file = tmp_path / "muster.pyz"
    shutil.copy(built.path, file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("muster_node/probes/added.py", A_PROBE)
    job = tmp_path / "job"
    job.mkdir()
    (job / "plan.json").write_text(plan(call("added")).to_json())
    assert run(file, "run", str(job / "plan.json"), work=tmp_path / "work").returncode == 0
    (row,) = parse_result((job / "result.json").read_bytes()).measurements
    assert (row.probe, row.metric, row.unit, row.value) == ("added", "figure", "GB/s", 12)


def test_it_declares_its_probes(built: agentfile.AgentFile, tmp_path: Path) -> None:
    done = run(built.path, "probes", "--json", work=tmp_path / "work")
    output = json.loads(done.stdout)
    assert output["broken"] == {}
    probes = {probe["name"]: probe for probe in output["probes"]}
    assert {"inventory", "exact_gemm", "cpu_burn"} <= set(probes)
    assert probes["inventory"]["loads"] is False
    assert probes["inventory"]["metrics"]["cpu_model"]["unit"] == "text"


def test_info_describes_the_agent(built: agentfile.AgentFile, tmp_path: Path) -> None:
    output = json.loads(run(built.path, "info", "--json", work=tmp_path / "work").stdout)
    assert output["sha256"] == built.sha256
    assert (output["plan_schema"], output["result_schema"]) == (contract.PLAN_SCHEMA, contract.RESULT_SCHEMA)
    assert output["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (output["fence"], output["running"]) == (-1, None)


def test_a_python_that_is_too_old_is_refused(built: agentfile.AgentFile) -> None:
    main = zipfile.ZipFile(built.path).read("__main__.py").decode()
    old = main.replace("sys.version_info < (3, 9)", "sys.version_info < (99, 9)")
    done = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("muster: needs Python 3.9 or later, this is 3.")
    ast.parse(main, feature_version=(3, 4))


@pytest.mark.parametrize("path", NODE_FILES, ids=lambda path: str(path.relative_to(NODE_FILES[0].parents[1])))
def test_every_file_is_python_39_and_imports_only_the_standard_library_at_its_top(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    foreign = sorted(_imported_at_top(tree.body) - set(sys.stdlib_module_names) - {"muster_node"})
    assert not foreign


def _imported_at_top(body: list[ast.stmt]) -> set[str]:
    """Packages that importing the module imports. What only type checkers read, and functions, is left out."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.Import):
            found |= {name.name.split(".")[0] for name in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            found.add((statement.module or "").split(".")[0])
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            found |= _imported_at_top(statement.orelse)
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
            for handler in getattr(statement, "handlers", []):
                inner.extend(handler.body)
            found |= _imported_at_top(inner)
    return found
