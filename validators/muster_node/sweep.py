"""The sweep: what a node shows without load, in one answer of a few seconds. It reads, and never judges.

One JSON object on standard output: ``boot_id``, ``uptime_s``, ``log_s``, ``wall``, ``simulated``; ``facts``, a list of
{name, device, value or text, labels, note}; ``kernel``, the messages of the kernel log since the cursor; ``hung``, the
readings that did not end in time, and ``failed``, {reading: why}. Each reading runs in a thread of its own, all at
once, so that a sensor or a driver that hangs costs its own reading alone. Standard library only.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Callable

from muster_node import contract
from muster_node.agent import jobdir
from muster_node.bounded import Hung, bounded
from muster_node.hardware import events as device_events
from muster_node.hardware.host import clocks, disks, fabric, inventory, kernel_events
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import Fact, Hardware
from muster_node.hardware.vendors import vendors

SCHEMA = 1
READING_S = 10.0
"""A reading that takes longer hangs: healthy ones take milliseconds, NVML's of eight GPUs below a second."""
OPEN_S = 60.0
"""Opening the hardware wakes GPU after GPU where no process keeps them awake: tens of seconds on an idle 8-GPU node.
The controller's limit (MUSTER_SWEEP_SECONDS) must leave time for the readings after it."""
SYSTEMD_S = 8.0
"""Less than the sweep waits for a reading, so no command is left behind."""
FACTS_MAX = 4000
SMART, DISKS_MAX = "smart:", 32
TEXT_MAX = 300
CODED_MAX = 1000
"""Drivers' errors in one answer, which the controller refuses as a whole beyond 1,500 events."""
GIB = 1024.0**3

STATES = frozenset({
    "gpu_lost", "row_remap_pending", "row_remap_failed", "channel_repair_pending", "tpc_repair_pending",
    "unrepairable_memory", "retired_pages_pending", "sram_threshold_exceeded",
    "recovery_action", "nvlink_active", "pcie_width", "persistence_mode", "fabric_state", "fabric_healthy",
})  # fmt: skip
"""Of the states of each GPU (``Hardware.states``), those that are read at rest: clocks and lanes' speed rest too."""
COUNTERS = frozenset({
    "ecc_uncorrected", "ecc_corrected", "row_remap_corrected", "row_remap_uncorrected", "pcie_replay", "throttle_time",
    "nvlink_errors", "edac_corrected", "edac_uncorrected", "machine_checks",
    "machine_checks_corrected", "ib_errors",
})  # fmt: skip
SERVICES = ("slurmd", "kubelet")
"""Services that a node may need, apart from its GPU vendor's. The controller knows which of them ran before."""


def sweep(
    open_hardware: Callable[[], Hardware], boot_id: str, since_s: float, files: Files | None = None
) -> dict[str, Any]:
    """Returns the answer. ``boot_id`` and ``since_s``: where the last sweep ended, by the seconds since that boot."""
    began = time.monotonic()
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "hung": [],
        "failed": {},
        "facts": [],
        "kernel": None,
    }
    files = files or Files()
    try:
        hardware = bounded("opening the hardware", open_hardware, OPEN_S)
    except Exception as error:
        _not_read(found, "hardware", error)
        hardware = None
    readings: dict[str, Callable[[], Any]] = {}
    if hardware is None or not hardware.simulated:  # what is not behind the hardware seam is the host's, and real
        readings = {
            "uptime": lambda: clocks.uptime(files),
            "log_clock": lambda: clocks.log_clock(files),
            "clock": lambda: [inventory.clock_fact()],
            "space": lambda: list(_space()),
            "services": lambda: list(_services()),
            "ports": lambda: list(_ports(files)),
            "disks": lambda: list(disks.states(files)),
            **{SMART + disk: functools.partial(disks.smart, disk) for disk in disks.live(files)[:DISKS_MAX]},
        }
    machine = HostHardware(files) if hardware is None else hardware  # its GPUs may be unknown, the rest of it is not
    found["simulated"] = machine.simulated
    readings["boot"] = machine.boot_id
    readings["states"] = lambda: _only(machine.states(), STATES)
    readings["counters"] = lambda: _only(machine.counters(), COUNTERS)
    readings["imex"] = lambda: _only(machine.domain(), ("imex",))
    readings["kernel"] = machine.kernel_log
    if hardware is not None:
        readings["gpus"] = lambda: [Fact("gpus", "node", "count", float(len(machine.devices("gpu"))))]
    answers = _all_at_once(readings, found)
    found["boot_id"], found["uptime_s"] = answers.pop("boot", ""), answers.pop("uptime", None)
    found["log_s"] = answers.pop("log_clock", None)
    if "kernel" in answers:
        same = boot_id == found["boot_id"]
        found["kernel"] = kernel(answers.pop("kernel"), since_s if same else 0.0)
        if hardware is not None and found["kernel"]:
            _name_devices(found, hardware)
    found["facts"] = [_plain(fact) for fact in _held(answers, found["failed"])]
    _one_reason(found["failed"])
    found["wall"] = time.time()  # as late as possible: waking GPUs takes as long as a clock may be wrong
    found["took_s"] = round(time.monotonic() - began, 3)
    return found


def _all_at_once(readings: dict[str, Callable[[], Any]], found: dict[str, Any]) -> dict[str, Any]:
    """Every reading's answer, each in a thread of its own; what did not answer is noted in ``found``."""
    from concurrent.futures import ThreadPoolExecutor

    answers = {}
    pool = ThreadPoolExecutor(len(readings))  # its threads end: ``bounded`` leaves what hangs in a daemon thread
    waiting = {name: pool.submit(bounded, name, call, READING_S) for name, call in readings.items()}
    for name, answer in waiting.items():
        try:
            answers[name] = answer.result()
        except Exception as error:
            _not_read(found, name, error)
    pool.shutdown()
    return answers


def _not_read(found: dict[str, Any], name: str, error: Exception) -> None:
    if isinstance(error, Hung):
        found["hung"].append(name)
    else:
        found["failed"][name] = f"{type(error).__name__}: {error}"[:TEXT_MAX]


def _one_reason(failed: dict[str, str]) -> None:
    """Merges failures of all disks' SMART logs for one reason (no tool, no right) into one."""
    logs = [name for name in failed if name.startswith(SMART)]
    if len({failed[name] for name in logs}) == 1:
        failed[SMART.rstrip(":")] = failed[logs[0]]
        for name in logs:
            del failed[name]


def _held(answers: dict[str, list[Fact]], failed: dict[str, str]) -> list[Fact]:
    """The facts that fit into an answer, those of the shortest readings first. A reading that is cut counts as failed,
    since what it lacks may exist."""
    facts: list[Fact] = []
    for name, each in sorted(answers.items(), key=lambda item: (len(item[1]), item[0])):
        if len(facts) + len(each) > FACTS_MAX:
            failed[name] = f"its facts are cut: an answer holds {FACTS_MAX}"
        facts += each[: FACTS_MAX - len(facts)]
    return facts


def _only(facts: Iterable[Fact], names: Iterable[str]) -> list[Fact]:
    return [fact for fact in facts if fact.name in names]


def _plain(fact: Fact) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": fact.name, "device": contract.as_name(fact.device)}
    if fact.value is not None:
        plain["value"] = fact.value
    for name, value in (("text", fact.text), ("note", fact.note)):
        if value:
            plain[name] = value[:TEXT_MAX]
    if fact.labels:
        plain["labels"] = fact.labels
    return plain


def kernel(log: Sequence[str] | None, since_s: float) -> dict[str, Any] | None:
    """The messages after ``since_s`` (seconds since boot), folded; None for a log that cannot be read.

    ``first`` and ``last``: times of the oldest line that the log still has, and of the newest; ``loaded``: of the last
    that says that a GPU driver was loaded; ``left_out``: how many messages are not among ``events``, which hold no more
    forms.
    """
    if log is None:
        return None
    loads = [vendor.loads for vendor in vendors() if vendor.loads]
    # A line without a time is read each time, rather than lost; the controller keeps each text once a boot.
    times = [device_events.first_time([line]) for line in log]
    new = [line for line, at in zip(log, times) if at is None or at > since_s]
    every, errors = kernel_events.parse_events(new), kernel_events.device_events(new)
    events, coded = kernel_events.folded(every), _coded(errors)
    return {
        "first": device_events.first_time(log),
        "last": device_events.last_time(log),
        "loaded": device_events.last_time([line for line in log if any(each in line for each in loads)]),
        "left_out": len(every) - sum(each.count for each in events) + len(errors) - sum(each.count for each in coded),
        "events": [
            *({"text": each.text, "count": each.count, "priority": each.priority, "pci": each.pci, "last": each.last}
              for each in events),
            *({"kind": each.kind, "code": each.code, "pci": each.pci, "part": each.part, "text": each.text[:TEXT_MAX],
               "count": each.count, "last": each.at if each.last is None else each.last}
              for each in coded),
        ],
    }  # fmt: skip


def _coded(errors: Sequence[device_events.DeviceEvent]) -> list[device_events.DeviceEvent]:
    """The drivers' errors, folded. If a whole baseboard fails, one text of each form is kept; if there are more forms
    than an answer holds, the first of each code and device."""
    found = device_events.folded(errors)
    if len(found) > CODED_MAX:
        found = device_events.folded(errors, texts=1)
    seen: collections.Counter[tuple[str, int, str]] = collections.Counter()

    def place(each: device_events.DeviceEvent) -> int:
        seen[each.kind, each.code, each.pci] += 1
        return seen[each.kind, each.code, each.pci]

    return sorted(found, key=place)[:CODED_MAX] if len(found) > CODED_MAX else found


def _name_devices(found: dict[str, Any], hardware: Hardware) -> None:
    """Adds ``device`` to messages with a PCI address; a GPU that no longer answers keeps its address alone."""
    messages = [each for each in found["kernel"]["events"] if each["pci"]]
    if not messages:
        return
    try:
        devices = bounded("inventory", lambda: device_events.by_pci(hardware.inventory()), READING_S)
    except Exception as error:
        return _not_read(found, "inventory", error)
    for each in messages:
        each["device"] = devices.get(each["pci"], "")


def _space() -> Iterator[Fact]:
    """Free space of the root and of Muster's work folder. A file system that is read-only, as the root of a system made
    of images is (composefs, squashfs, erofs), has none by construction.
    """
    for name, path in (("disk:/", "/"), ("disk:work", str(jobdir.work_dir()))):
        while not os.path.isdir(path):
            path = os.path.dirname(path)
        held = os.statvfs(path)
        if held.f_blocks and not held.f_flag & os.ST_RDONLY:
            share = held.f_bavail / held.f_blocks
            yield Fact("disk_free", name, "GiB", held.f_bavail * held.f_frsize / GIB, labels={"share": f"{share:.4f}"})


def _services() -> Iterator[Fact]:
    """The state of each service that systemd knows, and how often systemd restarted it. Raises Hung, and OSError where
    systemd does not answer: its services are not gone then.
    """
    command = ["systemctl", "show", "--property=Id,LoadState,ActiveState,NRestarts", *SERVICES,
               *(each for vendor in vendors() for each in vendor.services)]  # fmt: skip
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SYSTEMD_S)
    except subprocess.TimeoutExpired:
        raise Hung(f"systemctl show did not end within {SYSTEMD_S:.0f} s") from None
    if "LoadState=" not in done.stdout:
        raise OSError(f"systemctl show gave no service and ended with status {done.returncode}")
    for block in done.stdout.split("\n\n"):
        known = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if known.get("LoadState") == "loaded":
            name = known.get("Id", "").replace(".service", "")
            yield Fact("service", name, "text", text=known.get("ActiveState"))
            if known.get("NRestarts", "").isdigit():  # since it was started last, which an older systemd does not say
                yield Fact("service_restarts", name, "count", float(known["NRestarts"]))


def _ports(files: Files) -> Iterator[Fact]:
    """Whether each port has a link: InfiniBand and RoCE by the adapter, others by the kernel's carrier.

    Without those that come and go (``fabric.stays``).
    """
    links = fabric.port_links(files)
    for device, adapter, _ in fabric.ports(files):
        active = links.get(device)
        port = inventory.fact("ib_port_active", device, "bool", None if active is None else float(active))
        yield _at(files, f"/sys/class/infiniband/{adapter}", port)
    for name in files.names("/sys/class/net"):
        base = f"/sys/class/net/{name}"
        if files.exists(f"{base}/device") and fabric.stays(files, base):
            carrier = files.number(f"{base}/carrier")  # refused while the interface is down
            yield _at(files, base, inventory.fact("net_carrier", "nic:" + name, "bool", carrier))
    yield from _lent(files)


def _at(files: Files, interface: str, fact: Fact) -> Fact:
    """The fact with the PCI address of its interface, by which ``_lent`` names an adapter."""
    return dataclasses.replace(fact, labels={"pci": os.path.basename(files.real(f"{interface}/device"))})


def _lent(files: Files) -> Iterator[Fact]:
    """The PCI address of each adapter that is entirely in a container's network namespace: the kernel lists no
    interface of it here, but keeps its folder."""
    pci = "/sys/bus/pci/devices"
    own = [each for each in files.names(pci) if not files.exists(f"{pci}/{each}/physfn")]
    for name, folder in (("net_elsewhere", "net"), ("ib_elsewhere", "infiniband")):
        for each in own:
            if files.exists(f"{pci}/{each}/{folder}") and not files.names(f"{pci}/{each}/{folder}"):
                yield Fact(name, each, "bool", 1.0)


def main(open_hardware: Callable[[], Hardware], boot_id: str, since_s: float) -> int:
    """Prints the answer."""
    json.dump(sweep(open_hardware, boot_id, since_s), sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")
    sys.stdout.flush()
    return 0
