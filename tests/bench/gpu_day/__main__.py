"""All measurements of a machine with a GPU in 15 minutes, in order of value, in commands of ten minutes at most.

Here: ``python -m tests.bench.gpu_day pack --to FOLDER --sku SKU``, into a folder that travels with the tree. There, one
command each and in this order: ``python3 -m tests.bench.gpu_day PART --packed FOLDER --to OUT`` for stages, record,
block, integrity, rates, soak, train. Here: ``python -m tests.bench.gpu_day report --packed FOLDER --to OUT`` prints
figures beside their bars, judges the stages, and ends with one JSON object. ``--rehearse`` does all of it here with
tiny work.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.bench.gpu_day.parts import PARTS, part_of

REHEARSAL_SKU = "cpu-generic"


def main() -> int:
    """Run what the command line names; 1 where a bar is missed or a part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["pack", *(part.name for part in PARTS), "report"])
    parser.add_argument("--to", type=Path, default=Path("gpu-day-out"))
    parser.add_argument("--packed", type=Path, default=Path("gpu-day"))
    parser.add_argument("--sku", default="h200-sxm-8")
    parser.add_argument("--rehearse", action="store_true", help="everything here, with tiny work")
    chosen = parser.parse_args()
    if chosen.rehearse:
        return _rehearse()
    if chosen.what is None:
        parser.error("name a part, or --rehearse")
    if chosen.what == "pack":
        from tests.bench.gpu_day.pack import pack  # what reads SKU files is not on the machine with the GPU

        for plan in pack(chosen.to, chosen.sku, rehearse=False):
            print(plan)
        return 0
    if chosen.what == "report":
        return _report(chosen.packed, chosen.to)
    from tests.bench.gpu_day.device import run_part

    summary = run_part(part_of(chosen.what, rehearse=False), chosen.packed, chosen.to)
    for name, value, note in summary["figures"]:
        print(f"{name:<64} {'-' if value is None else format(value, '12.5g')}  {note[:80]}")
    print(json.dumps(summary))
    return int(bool(summary["trouble"]))


def _report(packed: Path, came_back: Path) -> int:
    from tests.bench.gpu_day.report import report

    answer = report(packed, came_back)
    print(json.dumps(answer))
    return int(bool(answer["short"]))


def _rehearse() -> int:
    from tests.bench.gpu_day.device import run_part
    from tests.bench.gpu_day.pack import pack

    with tempfile.TemporaryDirectory(prefix="gpu-day-") as folder:
        packed, out = Path(folder) / "packed", Path(folder) / "out"
        pack(packed, REHEARSAL_SKU, rehearse=True)
        for part in PARTS:
            run_part(part_of(part.name, rehearse=True), packed, out)
        return _report(packed, out)


if __name__ == "__main__":
    sys.exit(main())
