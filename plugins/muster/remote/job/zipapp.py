"""The node side as one file: a zipapp of ``muster_node`` and NVIDIA's NVML bindings, named by its own hash.

Stored without compression, so that bytes and hash do not depend on the controller's zlib.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import io
import os
import tempfile
import zipfile
from pathlib import Path

from muster import ownership
from muster.errors import ControllerFault

_DATE = (1980, 1, 1, 0, 0, 0)
_SHEBANG = b"#!/usr/bin/env python3\n"

# Must parse on any Python, to report a version that is too old for the rest.
_MAIN = b"""\
import os
import sys

if sys.version_info < (3, 9):
    sys.exit("muster: needs Python 3.9 or later, this is %s (%s)" % (sys.version.split()[0], sys.executable))

if __name__ == "__main__":
    from muster_node.cli import main

    main(sys.argv[1:], (sys.executable, os.path.abspath(sys.argv[0])))
"""


@dataclasses.dataclass(frozen=True)
class AgentFile:
    """The zipapp's path on the controller and its hash, which names the agent."""

    path: Path
    sha256: str


def build_agent(cache_dir: Path) -> AgentFile:
    """Returns the zipapp of the installed sources in ``cache_dir``; writes it unless it is there, and whole.

    Safe to call from many processes at once. Raises ControllerFault if ``cache_dir`` cannot be written.
    """
    try:
        data = packed()
        sha256 = hashlib.sha256(data).hexdigest()
        path = cache_dir / f"{sha256}.pyz"
        if not path.exists() or path.read_bytes() != data:
            ownership.folder(cache_dir)
            _write(path, data)
        return AgentFile(path, sha256)
    except OSError as error:
        raise ControllerFault(
            f"the node side cannot be packed in {cache_dir}: {error}; see that MUSTER_HOME can be written and has space"
        ) from error


@functools.cache
def packed() -> bytes:
    """The zipapp's bytes. A process and its forks keep the node side that matches the sources they run."""
    return _pack(_sources())


def _sources() -> dict[str, Path]:
    """Name in the archive → file."""
    package = _origin("muster_node").parent
    files = [file for file in package.rglob("*") if file.is_file() and file.parent.name != "__pycache__"]
    found = {f"muster_node/{file.relative_to(package).as_posix()}": file for file in files if file.suffix != ".pyc"}
    return dict(sorted({**found, "pynvml.py": _origin("pynvml")}.items()))


def _origin(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{module} is not installed: install this project with its dependencies")
    return Path(spec.origin)


def _pack(sources: dict[str, Path]) -> bytes:
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_entry("__main__.py"), _MAIN)
        for name, path in sources.items():
            archive.writestr(_entry(name), path.read_bytes())
    return buffer.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.create_system = 3  # Unix, wherever it was built
    entry.external_attr = 0o644 << 16
    return entry


def _write(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        ownership.give(Path(temporary))
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
