"""``python -m tests.docs.reference``: writes docs/reference; ``--check`` only names stale pages."""

from __future__ import annotations

import argparse
import sys

from tests.docs.reference import FOLDER, PAGES


def main(argv: list[str] | None = None) -> int:
    """Write or check the pages; names those that are not current."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.reference", description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(argv).check
    stale = [
        name for name, page in PAGES.items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != page()
    ]
    for name in stale:
        if check:
            print(f"docs/reference/{name} is not current: make reference", file=sys.stderr)
        else:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / name).write_text(PAGES[name]())
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
