"""The kernel log: recorded lines, mutated, with one known error planted among them."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path

from muster_criteria import policy_file
from muster_criteria.device_events.policy import KERNEL, EventPolicy
from muster_criteria.sku_files.skus import SHIPPED
from muster_node.hardware.events import folded, shape_of
from muster_node.hardware.host import kernel_events
from muster_node.hardware.host.kernel_log import parse_kmsg
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

DATA = Path(__file__).parents[3] / "muster_node" / "hardware" / "data"
PLANTED = (
    ("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", 79),
    ("NVRM: Xid (PCI:0000:1b:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error) on L2", 48),
    ("NVRM: Xid (PCI:0000:1b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x1 0x2 0x3 0x4 0x5 0x6)", 149),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0", "memory-uncorrected"),
    # An oops, of x86 and of arm64.
    ("Oops: 0000 [#1] PREEMPT SMP NOPTI", "oops"),
    ("Internal error: Oops - BTI: 0000000036000002 [#1] SMP", "oops"),
    ("Unable to handle kernel paging request at virtual address ffff80008a3c0000", "oops"),
    ("NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5)\\x0aNVRM: fallen off the bus", "gpu-off-bus"),
    ("{9}[Hardware Error]: event severity: fatal", "firmware-fatal"),
    (
        "amdgpu 0000:29:00.0: {4}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        "amdgpu-uncorrectable",
    ),
    ("rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 2-.... } 21 jiffies s: 1 root: 0x1/.", "lockup"),
    ("ata1.00: failed command: READ FPDMA QUEUED", "disk-timeout"),
    ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "disk-lost"),
)
"""A message, and its XID or the kernel policy's entry."""


@functools.cache
def _policy() -> EventPolicy:
    path = SHIPPED / "policies" / "kernel.yaml"
    return policy_file.parse(EventPolicy, path.read_bytes(), path.name)


@functools.cache
def _lines() -> tuple[str, ...]:
    cases = json.loads((DATA / "kernel_events.json").read_text())["cases"]
    recorded = [line for case in cases for line in case["input"]]
    return tuple(
        recorded + [line for entry in _policy().entries for each in entry.examples for line in each.split("\n")]
    )


def _draw(rng: random.Random) -> Sample:
    messages = [line.partition("] ")[2] for line in rng.choices(_lines(), k=rng.choice((3, 30)))]
    messages = mutate.text(rng, "\n".join(messages)).split("\n")
    if rng.random() < 0.1:  # a storm of errors, each of another form
        messages += [f"driver {word:x}: error {'gh'[word % 2] * (word % 97)}" for word in range(2_000)]
    if rng.random() < 0.1:  # a storm of one code on one GPU, each message different
        messages += [f"NVRM: Xid (PCI:0000:2a:00): 31, pid={number}, MMU fault" for number in range(2_000)]
    message, xid = rng.choice(PLANTED)
    place = rng.randint(0, len(messages))
    messages.insert(place, message)
    priority = rng.choice("14")  # its own, or one that only its words can overrule
    records = [f"{priority},{1000 + at},{1_000_000 + 100_000 * at},-;{each}" for at, each in enumerate(messages)]
    return Sample(("\n".join(records), message, xid), spoilt=message)


def _read(sample: Sample) -> Taken:
    log, message, planted = sample.data
    lines = parse_kmsg(log)
    every = kernel_events.parse_events(lines)
    xids, events = folded(kernel_events.device_events(lines)), kernel_events.folded(every)
    if isinstance(planted, int):
        found = any((event.code, event.pci) == (planted, "0000:1b:00") for event in xids)
    else:
        form = shape_of(message.split("\\x0a")[0])
        found = any(form in shape_of(each.text) and _named(each.text) == planted for each in events)
        found = found or sum(each.count for each in events) < len(every)  # counted as missing: inconclusive
    kept = max(len(xids), len(events))
    return Taken(well=not found, oversize=f"{kept} events" if kept > 1_000 else "")


def _named(text: str) -> str:
    return getattr(_policy().entry(KERNEL, None, text), "name", "")


EDGE = Edge(_draw, _read, (), peak_bytes=32 * 2**20)
