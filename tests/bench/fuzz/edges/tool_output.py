"""What vendors' tools print: recorded outputs, each with a reading of its own, mutated by line."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from muster_node.tools.dcgm import parse_dcgm_diag
from muster_node.tools.fio import parse_fio
from muster_node.tools.ipmi import parse_sdr
from muster_node.tools.nccl_log import parse_nccl_log
from muster_node.tools.nccl_tests import parse_nccl_tests
from muster_node.tools.nvbandwidth import parse_nvbandwidth
from muster_node.tools.output import BadOutput
from muster_node.tools.perftest import parse_ib_write_bw
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

DATA = Path(__file__).parents[3] / "muster_node" / "probes" / "data"
PARSERS: Mapping[str, Callable[[str], Any]] = {
    "dcgm": parse_dcgm_diag,
    "fio": lambda text: parse_fio(text, "read"),
    "ipmi": parse_sdr,
    "nccl_tests": lambda text: (parse_nccl_tests(text), parse_nccl_log(text)),
    "nvbandwidth": parse_nvbandwidth,
    "perftest": parse_ib_write_bw,
}
FAULTS = {
    "nvbandwidth": "Invalid value when checking the pattern at 0x7f0000000000",
    "perftest": " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81",
}
"""Lines by which a tool reports a failure, wherever they stand in its output."""


@functools.cache
def _recorded() -> tuple[tuple[str, str, bool], ...]:
    """(tool, output, whether it is read as complete and well) of every recording."""
    found = []
    for path in sorted(DATA.glob("*/*.yaml")):
        if path.parent.name in PARSERS:
            output = str(yaml.safe_load(path.read_text())["output"])
            found.append((path.parent.name, output, _well(path.parent.name, output)))
    return tuple(found)


def _well(tool: str, output: str) -> bool:
    try:
        read = PARSERS[tool](output)
    except BadOutput:
        return False
    if tool == "dcgm":
        return all(outcome.passed for outcome in read.outcomes)
    if tool == "nvbandwidth":
        return not read.corrupt
    if tool == "nccl_tests":
        return not read[0].wrong
    return True


def _draw(rng: random.Random) -> Sample:
    tool, output, well = rng.choice(_recorded())
    spoilt = ""
    mutated = mutate.text(rng, output)
    if well and rng.random() < 0.4:
        if tool in FAULTS:
            lines = mutated.split("\n")
            lines.insert(rng.randint(0, len(lines)), FAULTS[tool])
            mutated, spoilt = "\n".join(lines), f"{tool} that reports a failure"
        elif tool in ("fio", "nccl_tests"):
            mutated, spoilt = output[: rng.randrange(len(output) // 2)], f"{tool} that broke off"
    return Sample((tool, mutated), spoilt, large=len(mutated) > 100_000)


def _read(sample: Sample) -> Taken:
    tool, output = sample.data
    PARSERS[tool](output)
    return Taken(well=_well(tool, output))


EDGE = Edge(_draw, _read, (BadOutput,), peak_bytes=64 * 2**20)
