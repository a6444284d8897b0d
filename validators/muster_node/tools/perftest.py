"""Output of perftest's ib_write_bw with ``--report_gbits``: a table of one row for each message size."""

from __future__ import annotations

import re

from muster_node.tools.output import BadOutput, rate

_HEADER = re.compile(r"^.*BW average\[Gb/sec\].*$", re.MULTILINE)
_COLUMN = re.compile(r"#bytes|#iterations|BW peak\[|BW average\[")
_COMPLETION = re.compile(r"Completion with error[^\n]*(?:\s*Failed status[^\n]*)?")


def ib_write_bw(device: str, port: int, *options: str) -> list[str]:
    """The command line for a port of an adapter ("mlx5_0", "mlx5_0/2"), which the two sides meet at by TCP."""
    name, _, number = device.partition("/")
    return ["ib_write_bw", "-d", name, "-i", number or "1", "-p", str(port), "-F", "--report_gbits", *options]


def parse_ib_write_bw(text: str) -> float:
    """Average bandwidth in Gb/s of the largest size. ``text`` is both streams. Raises BadOutput if a write failed."""
    failed = _COMPLETION.search(text)
    if failed:
        raise BadOutput("write failed", "failed: {}".format(" ".join(failed.group(0).split())))
    header = _HEADER.search(text)
    if header is None:
        raise BadOutput("no results", "printed no table")
    average = [name.rstrip("[") for name in _COLUMN.findall(header.group(0))].index("BW average")
    rates: dict[int, float] = {}
    for line in text[header.end() :].splitlines():
        words = line.split()
        of_size = rate(words[average]) if len(words) > average and words[0].isdigit() and words[1].isdigit() else None
        if of_size is not None:
            rates[int(words[0])] = of_size
    if not rates:
        raise BadOutput("no results", "printed a table without a row")
    return rates[max(rates)]
