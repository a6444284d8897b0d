"""Pure parsers of /proc, /sys and short commands: text in, values out. Tested with recorded data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from muster_node.hardware.seam import NOT_SUPPORTED

# Vector register widths in bits, widest first; SVE's width is not in /proc/cpuinfo, so ARM counts by Advanced SIMD.
_VECTOR_FLAGS = (("avx512f", 512), ("avx2", 256), ("avx", 256), ("sse2", 128), ("asimd", 128), ("neon", 128))

# Interrupts of machine-check events. THR is that of errors that the hardware corrected (CMCI on Intel, the threshold of
# corrected errors on AMD), DFR that of deferred ones. MCP, the polls, rises by itself on a healthy machine.
_MACHINE_CHECKS = {"machine_checks": ("MCE", "DFR"), "machine_checks_corrected": ("THR",)}

_UNSET_SERIALS = {"", "none", "not specified", "default string", "to be filled by o.e.m.", "system serial number", "0"}


def parse_cpuinfo(text: str) -> dict[str, Any]:
    """/proc/cpuinfo as {model, sockets, cores, microcode, mhz, tsc_mhz, flags}; absent items are None.

    ``mhz`` is the fastest momentary clock (a constant on most virtual machines), ``tsc_mhz`` half of BogoMIPS, which on
    x86 is the frequency of the time-stamp counter.
    """
    blocks = [_fields(block) for block in re.split(r"\n\s*\n", text.strip()) if "processor" in block]
    first = blocks[0] if blocks else {}
    packages = {block["physical id"] for block in blocks if "physical id" in block}
    cores = {(block.get("physical id"), block["core id"]) for block in blocks if "core id" in block}
    clocks = [float(block["cpu MHz"]) for block in blocks if "cpu MHz" in block]
    model = first.get("model name")
    if model is None and "CPU implementer" in first:
        model = "ARM implementer {} part {}".format(first["CPU implementer"], first.get("CPU part", "?"))
    bogomips = first.get("bogomips")
    return {
        "model": model,
        "sockets": len(packages) or None,
        "cores": len(cores) or None,
        "microcode": first.get("microcode"),
        "mhz": max(clocks) if clocks else None,
        "tsc_mhz": float(bogomips) / 2 if bogomips else None,
        "flags": first.get("flags", first.get("Features", "")).split(),
    }


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_vector_width(flags: Sequence[str]) -> int | None:
    """Width in bits of the widest vector registers among the CPU's flags."""
    return next((bits for flag, bits in _VECTOR_FLAGS if flag in flags), None)


def parse_clock(cpufreq_khz: Sequence[float], cpuinfo: dict[str, Any]) -> tuple[float | None, str]:
    """The highest clock in MHz and a note that names its source; the best source first."""
    if cpufreq_khz:
        return max(cpufreq_khz) / 1000.0, ""
    if cpuinfo["mhz"]:
        return cpuinfo["mhz"], "momentary clock of /proc/cpuinfo; the highest may be above it"
    if cpuinfo["tsc_mhz"] and "tsc" in cpuinfo["flags"]:
        return cpuinfo["tsc_mhz"], "frequency of the time-stamp counter; the highest clock may be above it"
    return None, NOT_SUPPORTED


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found = re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}


def parse_os_release(text: str) -> str | None:
    """The pretty name of the operating system."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)"?', text, re.MULTILINE)
    return found.group(1) if found else None


def parse_cpu_list(text: str) -> list[int]:
    """A kernel CPU list such as "0-3,8,10-11"."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def parse_size(text: str) -> int | None:
    """A kernel size such as "32768K" in bytes."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    return int(found.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[found.group(2)] if found else None


def parse_interrupts(text: str) -> dict[str, int | None]:
    """Machine-check interrupts of all CPUs in /proc/interrupts, by metric; None for what the kernel does not count."""
    found = re.findall(r"^\s*(\w+):((?:\s+\d+)+)", text, re.MULTILINE)
    counts = {name: sum(map(int, rest.split())) for name, rest in found}
    known = {metric: [counts[name] for name in names if name in counts] for metric, names in _MACHINE_CHECKS.items()}
    return {metric: sum(each) if each else None for metric, each in known.items()}


def parse_proc_stat(text: str) -> dict[str, tuple[int, int]]:
    """/proc/stat as {"node" or "cpu3": (busy ticks, all ticks)}; guest time is already inside user time."""
    result = {}
    for line in text.splitlines():
        words = line.split()
        if not words or not re.fullmatch(r"cpu\d*", words[0]):
            continue
        ticks = [int(word) for word in words[1:9]]
        idle = sum(ticks[3:5])
        result["node" if words[0] == "cpu" else words[0]] = (sum(ticks) - idle, sum(ticks))
    return result


def parse_who(text: str) -> list[tuple[str, str]]:
    """Output of ``who`` as (user, terminal), one for each login at a terminal.

    From coreutils 9.4 on, ``who`` may ask logind, which knows of an ssh session its service and perhaps its terminal.
    """
    found = re.findall(r"^(\S+) +(?:sshd +(?=pts/))?(\S+)", text, re.MULTILINE)
    return [(user, terminal) for user, terminal in found if terminal != "sshd"]


def parse_infiniband_rate(text: str) -> float | None:
    """A port's rate ("400 Gb/sec (4X NDR)") in Gb/s."""
    found = re.match(r"([\d.]+) Gb/sec", text.strip())
    return float(found.group(1)) if found else None


def parse_serial(text: str | None) -> str | None:
    """A serial number, None where the maker left a placeholder in its place."""
    return text if text is not None and text.strip().lower() not in _UNSET_SERIALS else None
