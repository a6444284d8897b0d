"""Copies between page-locked host memory, GPUs and their peers: rates, and a check of the received data.

Every copy is digested at both ends, warm-up included, and goes into a buffer that was cleared before. Buffers stay for
the whole probe, so that none of host memory is handed from a GPU to another that lies behind the other socket. What was
wrong is copied again, there and by two GPUs that had nothing wrong.
"""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Device, Transfer
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.common import MIB, median, reason_of, seed_of, spread
from muster_node.workloads.copying import Copied, Copying, Route, Sent, filled
from muster_node.workloads.patterns import WORD
from muster_node.workloads.rerun import DOC as RERUN_DOC
from muster_node.workloads.rerun import Rerun, peers_of, report_reruns

HOST_DIRECTIONS = {"h2d": ("h2d",), "d2h": ("d2h",), "both": ("h2d", "d2h")}
"""What is measured on the way to the host, and the copies that are then under way at once."""
_RERUNS = 3


class Transfers(Probe):
    """Rates and digests of copies over PCIe and between GPUs."""

    name = "transfers"
    stage = "performance"
    doc = "Copies between host and GPUs and between GPUs: rates, and digests at both ends"
    params = {
        "mib": Param(256, "size of a copy between host and GPU in MiB"),
        "peer_mib": Param(1024, "size of a copy between GPUs in MiB"),
        "repeats": Param(5, "timed copies of each kind; fewer than three give no rate"),
    }
    metrics = {
        "pcie_bandwidth": Metric(
            "GB/s", "rate by direction while the other GPUs rest; both ways at once: the sum of the two"
        ),
        "pcie_bandwidth_together": Metric("GB/s", "the same while all GPUs copy at once"),
        "peer_bandwidth": Metric(
            "GB/s", "rate from or to another GPU, the slower way: the median over its peers, the slowest in the note"
        ),
        "peer_pair_bandwidth": Metric("GB/s", "rate from another GPU, by peer"),
        "transfer_mismatches": Metric(
            "count",
            "copies that arrived with another digest, by direction; between GPUs at the end that errs more",
        ),
        "transfer_rerun": Metric("count", RERUN_DOC),
    }
    needs = ("torch", "gpu")

    def run(self, context: Context) -> None:
        """Measure. Raises Skip where no GPU answers."""
        torch, hardware = require_torch(), context.hardware
        gpus = hardware.devices("gpu")
        if not gpus:
            raise Skip("there is no GPU that answers")
        _to_the_host(context, torch, gpus)
        _between(context, torch, gpus)


def _whole_words(mib: float) -> int:
    return int(mib * MIB) // WORD * WORD


class Found(dict[str, Copied]):
    """What a GPU copied, by direction."""

    @classmethod
    def never(cls, reason: str) -> Found:
        """Copies that could not begin."""
        return cls((name, Copied.never(reason)) for name in HOST_DIRECTIONS)

    @property
    def error(self) -> str:
        """Why copies broke off: their time is no yardstick of the others' (``workers.Job``)."""
        return next((copied.lost for copied in self.values() if copied.lost), "")


class _HostLink:
    """One GPU's way to the host: a route for each direction, on buffers that stay."""

    def __init__(self, torch: Any, context: Context, device: Device) -> None:
        nominal_bytes, self._context = _whole_words(context.params["mib"]), context
        self._compute, self._copying = context.hardware.compute(device), Copying(torch, context, nominal_bytes)
        shape = self._compute.physical(nominal_bytes // WORD)
        self._routes = {
            direction: self._new_route(torch, direction, shape, context.seed) for direction in ("h2d", "d2h")
        }

    def _new_route(self, torch: Any, direction: str, shape: tuple[int, ...], seed: int) -> Route:
        compute = self._compute
        ends = [compute.host_buffer(*shape), torch.empty(shape, dtype=torch.int64, device=compute.torch_device)]
        source, target = ends if direction == "h2d" else ends[::-1]
        sent = filled(torch, source, seed_of(seed, compute.device.id, direction))
        return Route(Transfer(direction, target, source), sent)

    def measure(self, ready: Callable[[], Any]) -> Found:
        """Both directions alone and at once; ``ready`` is called before each."""
        found = Found()
        for name in HOST_DIRECTIONS:
            ready()
            copied = found[name] = self._copying(self._compute, self._routes_of(name))
            if copied.wrong:
                _emit_mismatches(self._context, self._compute.device, copied, name, so_far=True)
        return found

    def again(self, name: str, times: int) -> Rerun:
        """Repeats copies of a direction."""
        return self._copying.again(self._compute, self._routes_of(name), times)

    def _routes_of(self, name: str) -> list[Route]:
        return [self._routes[direction] for direction in HOST_DIRECTIONS[name]]


_Link = TypeVar("_Link")


def _each(gpus: list[Device], make: Callable[[Device], _Link]) -> tuple[dict[Device, _Link], dict[Device, str]]:
    """What ``make`` returns by GPU, and the reasons of those on which PyTorch raised an error."""
    made, errors = {}, {}
    for gpu in gpus:
        try:
            made[gpu] = make(gpu)
        except RuntimeError as error:
            errors[gpu] = reason_of(error)
    return made, errors


def _to_the_host(context: Context, torch: Any, gpus: list[Device]) -> None:
    links, errors = _each(gpus, lambda gpu: _HostLink(torch, context, gpu))
    counted = {gpu: Found.never(error) for gpu, error in errors.items()}
    for gpu, link in links.items():
        context.progress(f"copies between the host and {gpu.id}")
        counted[gpu] = link.measure(lambda: None)
    for gpu in gpus:
        _emit_host_rates(context, "pcie_bandwidth", gpu, counted[gpu])
    context.progress("copies between the host and all GPUs at once")
    working = list(links)
    at_once = context.hardware.at_once(
        working,
        lambda worker: links[worker.device].measure(worker.ready),
        late=lambda _, why: Found.never(why),
    )
    together = {**{gpu: counted[gpu] for gpu in errors}, **dict(zip(working, at_once))}
    for gpu in gpus:
        found = together[gpu]
        _emit_host_rates(context, "pcie_bandwidth_together", gpu, found)
        for direction, copied in counted[gpu].items():
            copied.add(found[direction])
            _emit_mismatches(context, gpu, copied, direction)
    for direction in HOST_DIRECTIONS:
        suspects = {gpu.id for gpu in gpus if counted[gpu][direction].wrong or counted[gpu][direction].lost}
        for gpu in (each for each in gpus if counted[each][direction].wrong and not counted[each][direction].lost):
            on = {peer.id: links[peer].again(direction, 1) for peer in peers_of(gpu.id, suspects, gpus)}
            on[gpu.id] = links[gpu].again(direction, _RERUNS)
            report_reruns(context, "transfer_rerun", gpu.id, {"direction": direction}, on)


def _emit_host_rates(context: Context, metric: str, gpu: Device, found: dict[str, Copied]) -> None:
    for direction, copied in found.items():
        _emit_rate(context, metric, gpu, copied, {"direction": direction})


def _emit_rate(context: Context, metric: str, gpu: Device, copied: Copied, labels: dict[str, str]) -> None:
    rates, why_not = copied.rates, copied.without_rate
    if why_not:
        context.emit(metric, gpu.id, labels=labels, samples=len(rates), note=why_not)
    else:
        context.emit(metric, gpu.id, value=median(rates), labels=labels, samples=len(rates), spread=spread(rates))


def _emit_mismatches(context: Context, gpu: Device, copied: Copied, direction: str, *, so_far: bool = False) -> None:
    # Mismatches before the end count; matches clear nothing.
    value = None if copied.lost and not copied.wrong else copied.wrong
    note = "; ".join(filter(None, (copied.example, copied.lost)))
    context.emit(
        "transfer_mismatches", gpu.id, value=value, labels={"direction": direction}, samples=copied.copies, note=note,
        so_far=so_far,
    )  # fmt: skip


def _between(context: Context, torch: Any, gpus: list[Device]) -> None:
    """From every GPU to every other, one copy at a time: what one link can do, with no other traffic on a switch."""
    if len(gpus) < 2:
        context.emit("peer_bandwidth", gpus[0].id, note="there is no other GPU that answers")
        return
    nominal_bytes = _whole_words(context.params["peer_mib"])
    copying = Copying(torch, context, nominal_bytes)

    def ends(gpu: Device) -> tuple[Sent, Any]:
        compute = context.hardware.compute(gpu)
        source, target = (
            torch.empty(compute.physical(nominal_bytes // WORD), dtype=torch.int64, device=compute.torch_device)
            for _ in range(2)
        )
        return filled(torch, source, seed_of(context.seed, gpu.id, "peer")), target

    def route(to: Device, peer: Device) -> Route:
        sent, target = buffers[peer][0], buffers[to][1]
        return Route(Transfer("peer", target, sent.words, peer), sent)

    def again(to: Device, peer: Device, times: int) -> Rerun:
        return copying.again(context.hardware.compute(to), [route(to, peer)], times)

    buffers, errors = _each(gpus, ends)
    found = {}
    for gpu in gpus:
        context.progress(f"copies from its peers to {gpu.id}")
        for peer in (each for each in gpus if each != gpu):
            broken = next((each for each in (gpu, peer) if each in errors), None)
            if broken is not None:
                copied = Copied.never(f"{broken.id}: {errors[broken]}")
            else:
                copied = copying(context.hardware.compute(gpu), [route(gpu, peer)])
            _emit_rate(context, "peer_pair_bandwidth", gpu, copied, {"peer": peer.id})
            found[gpu.id, peer.id] = copied
        if any(copied.wrong for copied in found.values()):
            _emit_blame(context, gpus, found, set(), so_far=True)
    # A GPU none of whose copies ends is missing itself, and its peers are measured among each other.
    broken_gpus = {gpu.id for gpu in gpus if all(copied.lost for pair, copied in found.items() if gpu.id in pair)}
    for gpu in gpus:
        _emit_peers(context, gpu, found, set() if gpu.id in broken_gpus else broken_gpus)
    _emit_blame(context, gpus, found, broken_gpus)
    working = [gpu for gpu in gpus if gpu.id not in broken_gpus]
    among = {pair: copied.wrong for pair, copied in found.items() if not broken_gpus & set(pair)}
    _again_between(context, working, among, again)


def _emit_peers(context: Context, gpu: Device, found: dict[tuple[str, str], Copied], broken: set[str]) -> None:
    """The slower way's median over a GPU's peers, if there is a figure for each.

    ``found``: by (receiver, sender). A GPU that sends slowly hardly moves the median of what any of its peers receives.
    A copy to a peer that did not end is missing at the peer.
    """
    ways = {
        "from": {peer: each for (to, peer), each in found.items() if to == gpu.id and peer not in broken},
        "to": {to: each for (to, peer), each in found.items() if peer == gpu.id and to not in broken and not each.lost},
    }
    why_not = next((each.without_rate for way in ways.values() for each in way.values() if each.without_rate), "")
    if why_not or not all(ways.values()):
        context.emit("peer_bandwidth", gpu.id, note=why_not or "none of its copies to a peer ended")
        return
    rates = {way: {peer: median(each.rates) for peer, each in copied.items()} for way, copied in ways.items()}
    way = min(rates, key=lambda each: median(list(rates[each].values())))
    slowest = min(rates[way], key=lambda peer: rates[way][peer])
    note = f"copies {way} its peers, slowest {way} {slowest}: {rates[way][slowest]:.1f} GB/s"
    note += "".join(f"; without {peer}" for peer in sorted(broken))
    value, samples = median(list(rates[way].values())), len(rates[way])
    context.emit("peer_bandwidth", gpu.id, value=value, samples=samples, note=note)


def _emit_blame(
    context: Context,
    gpus: list[Device],
    found: dict[tuple[str, str], Copied],
    broken: set[str],
    *,
    so_far: bool = False,
) -> None:
    """``so_far``: further copies follow, which may charge others, so that no device is clear yet."""
    samples = sum(copied.copies for copied in found.values()) * 2 // len(gpus)
    charged = blamed({pair: copied.wrong for pair, copied in found.items()})
    for device, pairs in charged.items():
        apart = broken - {device}
        own = {pair: copied for pair, copied in found.items() if device in pair and not apart & set(pair)}
        lost = next((copied.lost for copied in own.values() if copied.lost), "")
        ways = sorted("{} to {}".format(*pair[::-1]) for pair, copied in own.items() if copied.wrong)
        tie = "at either end" if any(pair in charged[_other(pair, device)] for pair in pairs) else ""
        example = next((copied.example for copied in own.values() if copied.example), "")
        wrong = sum(pairs.values())
        value = None if (lost or so_far) and not wrong else wrong
        note, labels = "; ".join(filter(None, [*ways, tie, example, lost])), {"direction": "peer"}
        context.emit(
            "transfer_mismatches", device, value=value, labels=labels, samples=samples, note=note, so_far=so_far
        )


def _again_between(
    context: Context,
    gpus: list[Device],
    wrong: dict[tuple[str, str], int],
    again: Callable[[Device, Device, int], Rerun],
) -> None:
    """Repeats wrong copies between GPUs: on the end that they are charged to, on both where they are charged to both;
    and one copy between two GPUs that are charged with none.
    """
    charged, of = blamed(wrong), {gpu.id: gpu for gpu in gpus}
    suspects = {device for device, pairs in charged.items() if pairs}
    for gpu in (each for each in gpus if each.id in suspects):
        on: dict[str, Rerun] = {}
        for to, peer in charged[gpu.id]:
            rerun = again(of[to], of[peer], _RERUNS)
            for end in (to, peer):
                if (to, peer) in charged[end]:
                    on.setdefault(end, Rerun()).join(rerun)
        siblings = peers_of(gpu.id, suspects, gpus)
        if len(siblings) == 2:
            on.update(dict.fromkeys((each.id for each in siblings), again(siblings[0], siblings[1], 1)))
        report_reruns(context, "transfer_rerun", gpu.id, {"direction": "peer"}, on)


def _other(pair: tuple[str, str], device: str) -> str:
    return pair[1] if pair[0] == device else pair[0]


def blamed(wrong: dict[tuple[str, str], int]) -> dict[str, dict[tuple[str, str], int]]:
    """{device: {pair: wrong copies charged to the device}}, from {(receiver, sender): wrong copies}.

    A faulty device has wrong copies with many peers: each pair is charged to the end with more wrong pairs,
    or to both if they have equally many.
    """
    devices = dict.fromkeys(device for pair in wrong for device in pair)
    pairs = {device: sum(1 for pair, count in wrong.items() if count and device in pair) for device in devices}
    return {
        device: {
            pair: count
            for pair, count in wrong.items()
            if count and device in pair and pairs[device] == max(pairs[each] for each in pair)
        }
        for device in devices
    }
