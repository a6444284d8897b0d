"""The kernel log: recorded lines, mutated, with one known error planted among them."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

from muster_node.hardware.host.kernel_log import hardware_errors, parse_kmsg
from muster_node.hardware.host.xid_log import folded, parse_xids
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

DATA = Path(__file__).parents[3] / "muster_node" / "hardware" / "data"
PLANTED = (
    ("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", 79),
    ("NVRM: Xid (PCI:0000:1b:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error) on L2", 48),
    ("NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x1 0x2 0x3 0x4 0x5 0x6)", 149),
    ("mce: [Hardware Error]: Machine check events logged", 0),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", 0),
)
"""A message, and its XID, or 0."""


@functools.cache
def _lines() -> tuple[str, ...]:
    cases = json.loads((DATA / "hardware_errors.json").read_text())["cases"]
    return tuple(line for case in cases for line in case["input"])


def _draw(rng: random.Random) -> Sample:
    messages = [line.partition("] ")[2] for line in rng.choices(_lines(), k=rng.choice((3, 30)))]
    messages = mutate.text(rng, "\n".join(messages)).split("\n")
    if rng.random() < 0.1:  # a storm of one code on one GPU, each message different
        messages += [f"NVRM: Xid (PCI:0000:2a:00): 31, pid={number}, MMU fault" for number in range(2_000)]
    message, xid = rng.choice(PLANTED)
    place = rng.randint(0, len(messages))
    messages.insert(place, message)
    records = [f"4,{1000 + at},{1_000_000 + at},-;{each}" for at, each in enumerate(messages)]
    return Sample(("\n".join(records), message, xid), spoilt=message)


def _read(sample: Sample) -> Taken:
    log, message, xid = sample.data
    lines = parse_kmsg(log)
    events = folded(parse_xids(lines))
    if xid:
        found = any((event.code, event.pci) == (xid, "0000:1b:00") for event in events)
    else:
        found = any(message in line for line in hardware_errors(lines))
    return Taken(well=not found, oversize=f"{len(events)} events" if len(events) > 1_000 else "")


EDGE = Edge(_draw, _read, (), peak_bytes=32 * 2**20)
