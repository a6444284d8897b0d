"""The command line: ``python -m tests.chaos --faults N --seed S [--minutes M] [--resume FOLDER]``."""

from __future__ import annotations

from tests.support import airflow_home

assert airflow_home.HOME, "before anything imports Airflow"

import argparse  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Sequence  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from muster_demo import watchdog  # noqa: E402
from muster_demo.services import ServiceFailed  # noqa: E402
from tests.chaos import campaign  # noqa: E402
from tests.chaos.faults import load  # noqa: E402
from tests.chaos.nodes import own_mounts  # noqa: E402
from tests.chaos.observers import OBSERVERS  # noqa: E402
from tests.support.servers import kubernetes_server  # noqa: E402

LEG_MINUTES = 30.0
FAULTS_A_MINUTE = 9.0
KEYS = ("faults", "lives", *OBSERVERS)


def total(legs: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """The sum of each figure; None where a leg does not know it, or there is no leg."""
    return {key: _sum([leg[key] for leg in legs]) for key in KEYS}


def examined(legs: Sequence[dict[str, Any]]) -> dict[str, int | None]:
    """Of how many the observers counted, in the same way."""
    return {key: _sum([leg["examined"][key] for leg in legs]) for key in OBSERVERS}


def _sum(each: Sequence[int | None]) -> int | None:
    known = [one for one in each if one is not None]
    return sum(known) if known and len(known) == len(each) else None


def table(legs: Sequence[dict[str, Any]]) -> str:
    """The figures, and below them all that was counted."""
    of = examined(legs)
    lines = [
        f"{key.replace('_', ' '):<32}{'unknown' if value is None else value:>8}"
        + (f" of {of[key]}" if of.get(key) is not None else "")
        for key, value in total(legs).items()
    ]
    for number, leg in enumerate(legs, start=1):
        lines += [f"leg {number}: {key}: {each}" for key in OBSERVERS for each in leg["found"][key] or ()]
    return "\n".join(lines)


def run(folder: Path, nodes: int, faults: int, seed: int, minutes: float, only: Sequence[str] = ()) -> int:
    """Run the legs that are missing in ``folder``; returns the exit status."""
    disks = own_mounts()
    if not disks:
        print("full and read-only disks are left out: this user may mount nothing")
    if kubernetes_server.missing():
        print("Kubernetes is left out: its API server is not built; see tests/support/servers/kubernetes_server.sh")
    folder.mkdir(parents=True, exist_ok=True)
    broken = False
    left, pace = minutes, FAULTS_A_MINUTE if minutes == float("inf") else faults / minutes
    while True:
        legs = _legs(folder)
        missing = faults - sum(leg["faults"] for leg in legs)
        if missing <= 0 or left <= 0:
            break
        length = min(left, LEG_MINUTES, max(1.0, missing / pace))
        share = min(missing, max(1, round(pace * length)))
        number = len(legs) + 1
        place = folder / f"leg-{number}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        # Sockets' paths are short.
        with tempfile.TemporaryDirectory(prefix="muster-chaos-", ignore_cleanup_errors=True) as temporary:
            at_work = Path(temporary)
            try:
                found = campaign.leg(at_work, nodes, seed * 1000 + number, share, length * 60, disks=disks, only=only)
            except ServiceFailed as error:
                print(f"leg {number} could not be carried out: {error}; its logs are in {place}")
                broken = True
                break
            finally:
                for name in ("ledger.jsonl", "logs", "airflow/logs"):
                    _keep(at_work / name, place / Path(name).name)
        (folder / f"leg-{number}.json").write_text(json.dumps(found, indent=1))
        left -= length
    print(table(legs))
    figures, of = total(legs), examined(legs)
    nothing = [key.replace("_", " ") for key in OBSERVERS if not of[key]]
    if nothing:
        print(f"of these nothing was examined, so they say nothing: {', '.join(nothing)}")
    print(json.dumps({**figures, "examined": of, "seed": seed, "nodes": nodes, "legs": len(legs)}))
    return 1 if broken or nothing or any(figures[key] != 0 for key in OBSERVERS) else 0


def _keep(path: Path, to: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, to, dirs_exist_ok=True, ignore_dangling_symlinks=True, symlinks=True)
    elif path.exists():
        shutil.copy(path, to)


def _legs(folder: Path) -> list[dict[str, Any]]:
    """The figures of the legs that are complete, in order."""
    found = []
    while (path := folder / f"leg-{len(found) + 1}.json").exists():
        found.append(json.loads(path.read_text()))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; no process outlives it."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=500, help="how many faults strike")
    parser.add_argument("--seed", type=int, default=0, help="what strikes whom, and which machines are faulty")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for how long faults strike, in all")
    parser.add_argument("--nodes", type=int, default=10, help="nodes of the fleet")
    parser.add_argument("--resume", type=Path, help="the folder of a campaign: go on after its last complete leg")
    kinds = [kind.name for of_class in load().values() for kind in of_class]
    parser.add_argument("--only", nargs="+", default=[], choices=kinds, metavar="KIND", help="strike with these alone")
    chosen = parser.parse_args(arguments)
    folder = (chosen.resume or Path(tempfile.mkdtemp(prefix="muster-campaign-"))).resolve()
    print(f"the campaign's folder is {folder}", file=sys.stderr)
    return watchdog.run(lambda: run(folder, chosen.nodes, chosen.faults, chosen.seed, chosen.minutes, chosen.only))


if __name__ == "__main__":
    sys.exit(main())
