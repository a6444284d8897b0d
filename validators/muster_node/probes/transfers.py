"""Copies between page-locked host memory, GPUs and their peers: rates, and a check of the received data.

Every copy is digested at both ends, warm-up included, and goes into a buffer that was cleared before. Buffers stay for
the whole probe, so that none of host memory is handed from a GPU to another that lies behind the other socket.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

from muster_node.cluster.digest import digest
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Transfer
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.common import MIB, median, reason_of, seed_of, spread
from muster_node.workloads.patterns import WORD, random_words

HOST_DIRECTIONS = {"h2d": ("h2d",), "d2h": ("d2h",), "both": ("h2d", "d2h")}
"""What is measured on the way to the host, and the copies that are then under way at once."""
_WARMUP = 1
_RATED = 3
"""Copies that a rate takes at least. On an H100, one of 256 MiB from the host ran at 45 GB/s and the median of three
at 51 (docs/gpu-day.md): a single one would fail a GPU that is well."""


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
        "peer_pair_mismatches": Metric("count", "copies that arrived here with another digest, by peer"),
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


@dataclasses.dataclass
class _Copied:
    """Results of one kind of copy: GB/s of each timed copy, number of copies, and number of wrong copies. ``lost``: why
    the copies broke off, if they did: then they have no figures.
    """

    rates: list[float] = dataclasses.field(default_factory=list)
    copies: int = 0
    wrong: int = 0
    example: str = ""
    lost: str = ""

    @classmethod
    def never(cls, reason: str) -> _Copied:
        """Copies that could not begin."""
        return cls(lost=f"no copy could begin: {reason}")

    @property
    def without_rate(self) -> str:
        """Why there is no rate, "" where there is one."""
        return self.lost or (f"a rate takes {_RATED} timed copies" if len(self.rates) < _RATED else "")

    def add(self, other: _Copied) -> None:
        """Count another's copies too; the rates are not of one kind and stay apart."""
        self.copies, self.wrong = self.copies + other.copies, self.wrong + other.wrong
        self.example, self.lost = self.example or other.example, self.lost or other.lost


@dataclasses.dataclass
class _Sent:
    """The data sent: words and their complement in turns, so that a stuck bit shows with every sender.

    ``digests``: of the words, and of their complement.
    """

    words: Any
    digests: tuple[str, str]

    def turn(self) -> None:
        """Switches between the words and their complement."""
        self.words.bitwise_not_()
        self.digests = self.digests[::-1]


@dataclasses.dataclass(frozen=True)
class _Route:
    """A copy that can be repeated, and what it sends."""

    transfer: Transfer
    sent: _Sent


def _filled(torch: Any, source: Any, key: int) -> _Sent:
    """Fills the source with pseudo-random words, since repeating data hides errors."""
    source.copy_(random_words(key).words(torch.arange(source.numel(), dtype=torch.int64, device=source.device)))
    plain = digest(torch, [source])
    sent = _Sent(source, (plain, digest(torch, [source.bitwise_not_()])))
    source.bitwise_not_()
    return sent


class _Copying:
    """Repeats concurrent copies, and compares the received data each time."""

    def __init__(self, torch: Any, context: Context, nominal_bytes: int) -> None:
        self._torch, self._hardware, self._bytes = torch, context.hardware, nominal_bytes
        self._repeats = int(context.params["repeats"])

    def __call__(self, compute: Compute, routes: Sequence[_Route]) -> _Copied:
        copied = _Copied()
        with self._hardware.loading([compute.device]):
            try:
                for number in range(_WARMUP + self._repeats):
                    self._once(compute, routes, copied, number >= _WARMUP)
            except RuntimeError as error:  # what PyTorch raises when a device has gone
                copied.lost = f"the copies broke off: {reason_of(error)}"
        return copied

    def _once(self, compute: Compute, routes: Sequence[_Route], copied: _Copied, counts: bool) -> None:
        for route in routes:
            route.sent.turn()
            route.transfer.target.zero_()
            if route.sent.words.is_cuda:  # a copy waits for its source's GPU, which the timer does not
                self._torch.cuda.synchronize(route.sent.words.device)
        with compute.timer() as timing:
            compute.transfer([route.transfer for route in routes], nominal_bytes=self._bytes)
        if counts:
            copied.rates.append(len(routes) * self._bytes / timing.seconds / 1e9)
        for route in routes:
            self._compare(route, copied)

    def _compare(self, route: _Route, copied: _Copied) -> None:
        copied.copies += 1
        if digest(self._torch, [route.transfer.target]) != route.sent.digests[0]:
            copied.wrong += 1
            copied.example = copied.example or _difference(route.transfer)


def _difference(transfer: Transfer) -> str:
    """Where the two ends differ, for people."""
    places = (transfer.target.cpu() != transfer.source.cpu()).nonzero().flatten()
    if not places.numel():
        return "the digests differ, and the words are the same on a second look"
    first = int(places[0]) * WORD
    return f"{places.numel()} of {transfer.target.numel()} words differ, the first at 0x{first:x}"


def _whole_words(mib: float) -> int:
    return int(mib * MIB) // WORD * WORD


class _HostLink:
    """One GPU's way to the host: a route for each direction, on buffers that stay."""

    def __init__(self, torch: Any, context: Context, device: Device) -> None:
        nominal_bytes = _whole_words(context.params["mib"])
        self._compute, self._copying = context.hardware.compute(device), _Copying(torch, context, nominal_bytes)
        shape = self._compute.physical(nominal_bytes // WORD)
        self._routes = {
            direction: self._new_route(torch, direction, shape, context.seed) for direction in ("h2d", "d2h")
        }

    def _new_route(self, torch: Any, direction: str, shape: tuple[int, ...], seed: int) -> _Route:
        compute = self._compute
        ends = [compute.host_buffer(*shape), torch.empty(shape, dtype=torch.int64, device=compute.torch_device)]
        source, target = ends if direction == "h2d" else ends[::-1]
        sent = _filled(torch, source, seed_of(seed, compute.device.id, direction))
        return _Route(Transfer(direction, target, source), sent)

    def measure(self, ready: Callable[[], Any]) -> dict[str, _Copied]:
        """Both directions alone and at once; ``ready`` is called before each."""
        found = {}
        for name, directions in HOST_DIRECTIONS.items():
            ready()
            found[name] = self._copying(self._compute, [self._routes[direction] for direction in directions])
        return found


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
    counted = {gpu: {name: _Copied.never(error) for name in HOST_DIRECTIONS} for gpu, error in errors.items()}
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
        late=lambda _, why: {name: _Copied.never(why) for name in HOST_DIRECTIONS},
    )
    together = {**{gpu: counted[gpu] for gpu in errors}, **dict(zip(working, at_once))}
    for gpu in gpus:
        found = together[gpu]
        _emit_host_rates(context, "pcie_bandwidth_together", gpu, found)
        for direction, copied in counted[gpu].items():
            copied.add(found[direction])
            _emit_mismatches(context, "transfer_mismatches", gpu, copied, {"direction": direction})


def _emit_host_rates(context: Context, metric: str, gpu: Device, found: dict[str, _Copied]) -> None:
    for direction, copied in found.items():
        _emit_rate(context, metric, gpu, copied, {"direction": direction})


def _emit_rate(context: Context, metric: str, gpu: Device, copied: _Copied, labels: dict[str, str]) -> None:
    rates, why_not = copied.rates, copied.without_rate
    if why_not:
        context.emit(metric, gpu.id, labels=labels, samples=len(rates), note=why_not)
    else:
        context.emit(metric, gpu.id, value=median(rates), labels=labels, samples=len(rates), spread=spread(rates))


def _emit_mismatches(context: Context, metric: str, gpu: Device, copied: _Copied, labels: dict[str, str]) -> None:
    # Mismatches before the end count; matches clear nothing.
    value = None if copied.lost and not copied.wrong else copied.wrong
    note = "; ".join(filter(None, (copied.example, copied.lost)))
    context.emit(metric, gpu.id, value=value, labels=labels, samples=copied.copies, note=note)


def _between(context: Context, torch: Any, gpus: list[Device]) -> None:
    """From every GPU to every other, one copy at a time: what one link can do, with no other traffic on a switch."""
    if len(gpus) < 2:
        context.emit("peer_bandwidth", gpus[0].id, note="there is no other GPU that answers")
        return
    nominal_bytes = _whole_words(context.params["peer_mib"])
    copying = _Copying(torch, context, nominal_bytes)

    def ends(gpu: Device) -> tuple[_Sent, Any]:
        compute = context.hardware.compute(gpu)
        source, target = (
            torch.empty(compute.physical(nominal_bytes // WORD), dtype=torch.int64, device=compute.torch_device)
            for _ in range(2)
        )
        return _filled(torch, source, seed_of(context.seed, gpu.id, "peer")), target

    buffers, errors = _each(gpus, ends)
    found = {}
    for gpu in gpus:
        context.progress(f"copies from its peers to {gpu.id}")
        for peer in (each for each in gpus if each != gpu):
            broken = next((each for each in (gpu, peer) if each in errors), None)
            if broken is not None:
                copied = _Copied.never(f"{broken.id}: {errors[broken]}")
            else:
                sent, target = buffers[peer][0], buffers[gpu][1]
                route = _Route(Transfer("peer", target, sent.words, peer), sent)
                copied = copying(context.hardware.compute(gpu), [route])
            _emit_rate(context, "peer_pair_bandwidth", gpu, copied, {"peer": peer.id})
            _emit_mismatches(context, "peer_pair_mismatches", gpu, copied, {"peer": peer.id})
            found[gpu.id, peer.id] = copied
    # A GPU none of whose copies ends is missing itself, and its peers are measured among each other.
    broken_gpus = {gpu.id for gpu in gpus if all(copied.lost for pair, copied in found.items() if gpu.id in pair)}
    for gpu in gpus:
        _emit_peers(context, gpu, found, set() if gpu.id in broken_gpus else broken_gpus)
    _emit_blame(context, gpus, found, broken_gpus)


def _emit_peers(context: Context, gpu: Device, found: dict[tuple[str, str], _Copied], broken: set[str]) -> None:
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


def _emit_blame(context: Context, gpus: list[Device], found: dict[tuple[str, str], _Copied], broken: set[str]) -> None:
    samples = sum(copied.copies for copied in found.values()) * 2 // len(gpus)
    for device, wrong in blamed({pair: copied.wrong for pair, copied in found.items()}).items():
        apart = broken - {device}
        own = {pair: copied for pair, copied in found.items() if device in pair and not apart & set(pair)}
        lost = next((copied.lost for copied in own.values() if copied.lost), "")
        pairs = sorted("{} to {}".format(*pair[::-1]) for pair, copied in own.items() if copied.wrong)
        value, note = (None if lost and not wrong else wrong), "; ".join(filter(None, [*pairs, lost]))
        labels = {"direction": "peer"}
        context.emit("transfer_mismatches", device, value=value, labels=labels, samples=samples, note=note)


def blamed(wrong: dict[tuple[str, str], int]) -> dict[str, int]:
    """{device: wrong copies attributed to it}, from {(receiver, sender): wrong copies}.

    A faulty device has wrong copies with many peers: each pair counts for the end with more wrong pairs,
    or for both if they have equally many.
    """
    devices = dict.fromkeys(device for pair in wrong for device in pair)
    pairs = {device: sum(1 for pair, count in wrong.items() if count and device in pair) for device in devices}
    answers = dict.fromkeys(devices, 0)
    for pair, count in wrong.items():
        most = max(pairs[device] for device in pair)
        for device in pair:
            answers[device] += count if pairs[device] == most else 0
    return answers
