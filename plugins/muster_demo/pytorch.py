"""Finds the interpreter for the demo's nodes, one that can import PyTorch, or installs PyTorch.

PyTorch belongs to the node, so requirements.txt does not have it. ``python -m muster_demo.pytorch`` makes sure that an
interpreter of this machine has it; with ``--here`` it must be this one.
"""

from __future__ import annotations

import argparse
import functools
import os
import pathlib
import shutil
import subprocess
import sys

from rich.console import Console

VERSION = "2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU builds; the variable TORCH_INDEX names another."""

PROBE = "import sys, torch; sys.exit(sys.version_info < (3, 9))"


def can_import(python: str) -> bool:
    """Whether this interpreter runs, is new enough for the node side (3.9) and imports torch."""
    try:
        ended = subprocess.run([python, "-c", PROBE], capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


@functools.cache
def find_interpreter() -> str | None:
    """The first interpreter with PyTorch: this one, the one this environment was made from, the one on PATH."""
    base = getattr(sys, "_base_executable", None)
    candidates = [sys.executable, base, shutil.which("python3")]
    return next((python for python in dict.fromkeys(candidates) if python and can_import(python)), None)


def has_nvidia_gpu() -> bool:
    """Whether this machine's kernel drives an NVIDIA GPU."""
    return pathlib.Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def install() -> bool:
    """Install the pinned PyTorch into this environment: a CPU build where there is no GPU and one is available.

    pip does it, since indexes and find-links of its configuration may offer builds. Returns whether it succeeded.
    """
    console = Console()
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    if not has_nvidia_gpu():
        cpu_build = f"torch=={VERSION}+cpu"
        index = os.environ.get("TORCH_INDEX") or CPU_INDEX
        console.print(f"Installing {cpu_build} for the nodes (about 200 MB to download)", soft_wrap=True)
        if _succeeds([*pip, "--retries", "0", cpu_build], quiet=True):
            return True
        if _succeeds([*pip, "--retries", "1", "--extra-index-url", index, cpu_build], quiet=True):
            return True
        console.print(
            f"No CPU build of PyTorch at {index}: installing torch=={VERSION} with its CUDA packages, several GB to "
            "download (Ctrl-C, then TORCH_INDEX=… names another index)",
            soft_wrap=True,
        )
    return _succeeds([*pip, f"torch=={VERSION}"])


def _succeeds(command: list[str], *, quiet: bool = False) -> bool:
    return subprocess.run(command, check=False, stderr=subprocess.DEVNULL if quiet else None).returncode == 0


def main(argv: list[str] | None = None) -> int:
    """Make sure that PyTorch can be imported; exit status 1 and one sentence if it cannot be installed."""
    parser = argparse.ArgumentParser(prog="python -m muster_demo.pytorch", description=__doc__)
    parser.add_argument("--here", action="store_true", help="it must be importable by this very interpreter")
    here = parser.parse_args(argv).here
    found = can_import(sys.executable) if here else find_interpreter() is not None
    if found or install():
        return 0
    Console(stderr=True).print(
        f"PyTorch {VERSION} cannot be installed from here: install a torch that python3 can import, or set "
        "TORCH_INDEX to an index that has it, and run this again.",
        soft_wrap=True,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
