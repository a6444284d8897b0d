"""``python -m muster_demo``: what ``make demo`` runs."""

from __future__ import annotations

import argparse
import pathlib
import sys

from muster_demo.app import TIME_LIMIT_S, main


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m muster_demo", description="A small fleet on this machine, taken through its qualification."
    )
    parser.add_argument("--seed", type=int, help="draws which node and which GPU has which fault (default: at random)")
    parser.add_argument("--exit", action="store_true", help="end when all is done; status 0 only if all is right")
    parser.add_argument("--directory", type=pathlib.Path, help="where to work, emptied first (default: .demo here)")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S, help="give up after this many seconds")
    return parser.parse_args(argv)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(main(chosen.seed, chosen.exit, chosen.directory, chosen.time_limit))
