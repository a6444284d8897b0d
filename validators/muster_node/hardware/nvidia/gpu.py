"""The GPUs of a machine as NVML lists them: which is in which slot, and which of them cannot be distinguished."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from muster_node.hardware.nvidia.nvml import Answer, Nvml
from muster_node.hardware.seam import Device, Fact
from muster_node.hardware.torch_gpu import Card

NO_SERIALS = ("", "n/a", "[n/a]", "na", "0", "none", "unknown", "not supported", "[not supported]", "not available")
"""What firmware writes where a serial number should be, in lower case."""


BOARDS = (4, 8, 16)
"""How many GPUs boards have."""
MODULES_MAX = 32
"""Twice what the largest board has: a GPU whose module id is garbage has none."""


@dataclasses.dataclass(frozen=True)
class Gpu(Card):
    """One GPU with a handle. ``order``: its NVML index; ``slot_known``: its slot comes from the board and is not a
    guess; ``module``: its module id, None if it may not be a board's."""

    device: Device
    handle: Any
    slot_known: bool
    module: int | None


def find(nvml: Nvml, count: int) -> tuple[list[Gpu], list[str]]:
    """GPUs in slot order, and a sentence for each NVML index that gives no handle."""
    found: list[tuple[int, Any]] = []
    unanswered = []
    for index in range(count):
        handle = nvml.query("nvmlDeviceGetHandleByIndex", index)
        if handle.value is None:
            unanswered.append(f"NVML index {index}: {handle.note}")
            continue
        found.append((index, handle.value))
    modules = numbering([nvml.query("nvmlDeviceGetModuleId", handle).value for _, handle in found])
    slots = slots_of([(index, module) for (index, _), module in zip(found, modules)], len(unanswered))
    if sum(module is not None for module in modules) == 1:
        modules = [None] * len(modules)
    gpus = []
    for (index, handle), module, (slot, known) in zip(found, modules, slots):
        uuid = str(nvml.query("nvmlDeviceGetUUID", handle).value or "").strip()
        address = nvml.query("nvmlDeviceGetPciInfo", handle).map(lambda info: str(info.busId)).value or ""
        gpus.append(Gpu(uuid, index, address, (), Device(f"gpu{slot}", "gpu", slot), handle, known, module))
    return sorted(_with_twins(gpus), key=lambda gpu: gpu.device.index), unanswered


def _with_twins(gpus: Sequence[Gpu]) -> Iterator[Gpu]:
    for gpu in gpus:
        twins = tuple(other.device.id for other in gpus if other is not gpu and gpu.uuid and other.uuid == gpu.uuid)
        yield dataclasses.replace(gpu, twins=twins)


def numbering(modules: Sequence[int | None]) -> list[int | None]:
    """Module ids that number GPUs: without ids that no board has, and without an id that several GPUs report if no
    other GPU reports another: cards in PCIe slots all report the same (``nvidia-smi -q`` of RTX 6000 Ada: 1, of H100
    NVL: 4)."""
    usable = [None if module is None or module > MODULES_MAX else module for module in modules]
    reported = [module for module in usable if module is not None]
    return [None] * len(usable) if len(reported) > 1 == len(set(reported)) else usable


def module_id(nvml: Nvml, gpu: Gpu) -> Answer:
    """The GPU's module id; no value where it does not number the node's GPUs."""
    answer = nvml.query("nvmlDeviceGetModuleId", gpu.handle)
    if answer.value is None or gpu.module is not None:
        return answer
    return Answer(note=f"its module id, {answer.value}, may be none of a board's: no other GPU reports a different one")


def slots_of(modules: Sequence[tuple[int, int | None]], unanswered: int = 0) -> list[tuple[int, bool]]:
    """(slot, whether it is known) of each GPU, from (NVML index, module id): the id − 1 if ids are usable.

    Without any board's ids, NVML's order names the slots. An id that two GPUs claim is ignored, as is 0 if another GPU
    is the last of a full board that counts from 1. One GPU without an id takes the one slot that the others leave. If
    two have no id, or one has none and another gave no handle (``unanswered``) or is gone, their order is ambiguous:
    they get the free slots in NVML's order, which counts as known only if all the others follow it. An id that only one
    GPU reports may be any card's: it is a guess within as many slots as there are GPUs. An only GPU gets the first
    slot; with an id above 1 it may be a card, or the last of a board that lost all others.
    """
    count = len(modules) + unanswered
    claimed = collections.Counter(module for _, module in modules if module is not None)
    known = [module for module, times in claimed.items() if times == 1]
    alone = sum(claimed.values()) == 1
    first = count == 1 and max(claimed, default=0) <= 1
    sure = not alone or first
    if 0 in known and max(known) in BOARDS and max(known) >= count:
        known.remove(0)
    if not known or min(known) < 1 or (alone and known[0] > count):
        return [(index, not claimed or first) for index, _ in modules]
    modules = [(index, module if module in known else None) for index, module in modules]
    free = (slot for slot in itertools.count() if slot + 1 not in known)
    certain = max(count, *known) - len(known) == 1
    in_order = all(module == index + 1 for index, module in modules if module is not None)
    if in_order:
        return [(index, sure) for index, _ in modules]
    return [(next(free), certain and sure) if module is None else (module - 1, sure) for _, module in modules]


def serial_of(answer: Answer) -> Answer:
    """The serial number; no value where the firmware writes that it has none."""
    if answer.value is None or str(answer.value).strip().strip("0").lower() not in NO_SERIALS:
        return answer.map(lambda serial: str(serial).strip())
    return Answer(note=f"the GPU reports no serial number, but {str(answer.value)!r}")


def part_serials(nvml: Nvml, gpus: Sequence[Gpu]) -> dict[str, Answer]:
    """By GPU: the serial number that identifies it as one part. NVML's is the board's, and a board may have several
    GPUs.

    If any two share one (``nvidia-smi -q`` of GB200 and GB300: the two of a superchip), every GPU of the node gets its
    UUID appended, as "1650000000001/GPU-…", so that a GPU whose sibling falls silent keeps its name while another pair
    shares one. If none share one any more, it reports its board's alone, and the controller knows its UUID.
    """
    serials = {gpu.device.id: serial_of(nvml.query("nvmlDeviceGetSerial", gpu.handle)) for gpu in gpus}
    boards = [serial.value for serial in serials.values() if serial.value is not None]
    if len(set(boards)) == len(boards):
        return serials
    return {gpu.device.id: _of_board(serials[gpu.device.id], gpu) for gpu in gpus}


def _of_board(serial: Answer, gpu: Gpu) -> Answer:
    if serial.value is None or (gpu.uuid and not gpu.twins):
        return serial.map(lambda board: f"{board}/{gpu.uuid}")
    why = "which other GPUs report too" if gpu.twins else "which it does not report"
    return Answer(note=f"GPUs of this node share serial numbers, and are known apart by their UUID, {why}")


def identity_facts(nvml: Nvml, gpus: Sequence[Gpu]) -> Iterator[Fact]:
    """By GPU: its serial number, how many others claim its UUID or PCI address, and whether its slot is known."""
    serials = part_serials(nvml, gpus)
    places = collections.Counter(gpu.pci for gpu in gpus if gpu.pci)
    for gpu in gpus:
        device, serial = gpu.device.id, serials[gpu.device.id]
        yield Fact("gpu_serial", device, "text", text=serial.value, note=serial.note)
        answer = nvml.query("nvmlDeviceGetUUID", gpu.handle)
        if answer.value is None:  # nothing that is made of other answers makes a GPU look as if it answered
            yield Fact("identity_shared", device, "count", note=answer.note)
            yield Fact("slot_known", device, "bool", note=answer.note)
            continue
        notes = [f"the UUID of {', '.join(gpu.twins)}"] if gpu.twins else []
        beside = [o.device.id for o in gpus if o is not gpu and places[gpu.pci] > 1 and o.pci == gpu.pci]
        notes += [f"the PCI address of {', '.join(beside)}"] if beside else []
        note = f"it reports {' and '.join(notes)}" if notes else ""
        yield Fact("identity_shared", device, "count", float(len({*gpu.twins, *beside})), note=note)
        where = (
            "" if gpu.slot_known else f"the board gives it no place: it is the GPU at {gpu.pci or 'an unknown address'}"
        )
        yield Fact("slot_known", device, "bool", float(gpu.slot_known), note=where)


UNLIKE = ("gpu_model", "vbios", "inforom_version", "hbm_total", "pcie_generation_max", "pcie_width_max")
"""Facts in which the GPUs of one node are alike."""


def unlike_siblings(facts: Sequence[Fact], gpus: Sequence[Gpu]) -> Iterator[Fact]:
    """By GPU: number of facts in which it differs from what most of the node's GPUs report; in a tie, both differ.

    Unknown for a GPU that lacks facts which its siblings report and that differs in nothing else.
    """
    for gpu in gpus:
        device, different, known, silent = gpu.device.id, [], False, ""
        for name in UNLIKE:
            content = {fact.device: _content(fact) for fact in facts if fact.name == name and _content(fact)}
            known = known or device in content
            if device not in content:
                silent = f"it does not report {name}, and others do" if content else silent
            if device not in content or len(content) < 2:
                continue
            counts = collections.Counter(content.values())
            own = counts.pop(content[device])
            usual, often = counts.most_common(1)[0] if counts else ("", 0)
            if own <= often:
                different.append(f"{name} {content[device]}, others have {usual}")
        why = next((fact.note for fact in facts if (fact.name, fact.device) == (UNLIKE[0], device)), "")
        if known and (different or not silent):
            yield Fact("unlike_siblings", device, "count", float(len(different)), note="; ".join(different))
        else:
            note = silent if known else why or "nothing of it can be read"
            yield Fact("unlike_siblings", device, "count", note=note)


def _content(fact: Fact) -> str:
    if fact.text is not None:
        return fact.text
    return "" if fact.value is None else f"{fact.value:.6g}"
