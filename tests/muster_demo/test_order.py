"""The suite begins with the files that are to be early, and keeps each file whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[1] / "conftest.py"
FILES = {
    "test_a.py": "def test_one(): pass\ndef test_two(): pass\n",
    "test_b.py": "import pytest\ndef test_one(): pass\n@pytest.mark.early(2)\ndef test_two(): pass\n",
    "test_c.py": "import pytest\npytestmark = pytest.mark.early(1)\ndef test_one(): pass\n",
}


def test_early_files_come_first_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    early: x\n")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", str(tmp_path)],
        env={name: value for name, value in os.environ.items() if "XDIST" not in name},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line for line in ended.stdout.splitlines() if "::" in line]
    assert found == [
        "test_c.py::test_one",
        "test_b.py::test_one",
        "test_b.py::test_two",
        "test_a.py::test_one",
        "test_a.py::test_two",
    ]
