"""``python -m tests.bench.record NAME -- COMMAND …``: run a measurement and store it for docs/benchmarks.md.

``tests/bench/figures/NAME.json`` then holds the command, date, commit, machine, load, wall and CPU minutes, and the
JSON object on the output's last line where there is one. ``make figures`` renders the page from these files.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster_demo import watchdog

FIGURES = Path(__file__).parent / "figures"
LOGGED = re.compile(r"\d{4}-\d\d-\d\dT\S+ \[\w+ *\] ")
"""How a line of Airflow's log begins, which is no part of a table, and names files of this machine."""


def machine() -> str:
    """Cores, processor, memory and Python of this machine, in words."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = model[1] if model else platform.machine()
    return f"{os.cpu_count()} cores of {processor}, {memory:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    """The checked-out commit; with a plus where tracked files differ from it."""
    return subprocess.check_output(["git", "describe", "--always", "--abbrev=7", "--dirty=+"], text=True).strip()


def last_object(lines: Sequence[str]) -> dict[str, Any]:
    """The JSON object on the last line; empty where that line is none."""
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def measure(command: Sequence[str], tables: bool) -> dict[str, Any]:
    """Runs the command, shows its output as it comes, and returns the record; ``status`` is its exit status."""
    taken = {
        "command": shlex.join(command),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
    }
    begun, lines = time.monotonic(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
        except BaseException:
            running.terminate()  # it cleans up; else it would be waited for to its end
            raise
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken |= {
        "status": running.returncode,
        "wall_minutes": round((time.monotonic() - begun) / 60, 2),
        "cpu_minutes": round((used.ru_utime + used.ru_stime) / 60, 2),
        "figures": last_object(lines),
    }
    return taken | ({"tables": [line for line in lines[:-1] if not LOGGED.match(line)]} if tables else {})


def main() -> int:
    """Stores the record and returns the command's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.record", description=__doc__.splitlines()[0])
    parser.add_argument("name", help=f"of the file in {FIGURES.relative_to(Path.cwd())}")
    parser.add_argument("--tables", action="store_true", help="keep the output before its last line too")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    taken = measure(given.command, given.tables)
    FIGURES.mkdir(exist_ok=True)
    (FIGURES / f"{given.name}.json").write_text(json.dumps(taken, indent=1, ensure_ascii=False) + "\n")
    return int(taken["status"])


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
