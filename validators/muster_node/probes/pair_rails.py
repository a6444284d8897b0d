"""Two nodes test each of their rails with each other: payload, bandwidth and latency, each rail alone and all together.

One node serves and the other one joins it; each reports what arrived at it. The network is real also for a simulated
machine too, so everything here is measured in real time.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from muster_node.cluster.pair.backend import Backend, NoBackend, Rail, Step
from muster_node.cluster.pair.collective import Collective
from muster_node.cluster.pair.measure import HOST, TOGETHER_VARIANTS, Arrived, Pair
from muster_node.cluster.pair.meeting import Meeting, PartnerLost, join, serve
from muster_node.cluster.pair.rdma import IbWrite
from muster_node.cluster.pair.tcp import Tcp
from muster_node.cluster.rendezvous.block import ports_of
from muster_node.hardware.host.fabric import interfaces
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import RealClock
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import median
from muster_node.workloads.under_load.ports import PORT_METRICS, watched_ports

BACKENDS = ("tcp", "ib_write_bw", "nccl", "gloo")
RAILS_MAX, STREAMS_MAX, VARIANTS_MAX = 64, 64, 32


class PairRails(Probe):
    """Each rail between this node and one partner."""

    name = "pair_rails"
    stage = "cluster_validation"
    doc = "Payload, bandwidth and latency of each rail between two nodes; the pairs of a round locate a fault"
    params = {
        "role": Param(None, '"serve" or "join": which of the two nodes listens'),
        "partner": Param(None, "the other node's name"),
        "address": Param(None, "management address of the node that serves"),
        "ports": Param(None, "TCP ports of the node that serves: the first that is free there"),
        "session": Param(None, "secret text of this pair and round: who does not know it is not let in"),
        "rails": Param([], "each rail: name, both addresses (none: as they met), known interface, RDMA device and GPU"),
        "backend": Param("tcp", "one of " + ", ".join(BACKENDS)),
        "seconds": Param(2.0, "timed seconds of each transfer"),
        "warmup_s": Param(0.3, "seconds of a transfer that are not counted"),
        "streams": Param(4, "flows of each transfer"),
        "variants": Param(1, "how often each rail is measured alone, each time over other flows"),
        "crossed": Param(False, "whether each GPU also sends over the next rail's NIC, which tells GPU from NIC"),
        "perftest": Param("", "further options of ib_write_bw on both nodes, such as --tclass=106 --pkey_index=1"),
        "mib": Param(64, "MiB of each message of nccl and gloo"),
        "connect_s": Param(5.0, "seconds after which a rail without an answer is dead"),
        "join_timeout_s": Param(60.0, "real seconds that the partner is waited for"),
    }
    metrics = {
        "pair_met": Metric("bool", "whether the partner came and stayed to the end"),
        "pair_bandwidth": Metric("Gb/s", "what arrived over a rail; 0: nothing could be sent; none: it was not tried"),
        "pair_wrong_bytes": Metric("count", "bytes (nccl, gloo: elements) that arrived wrong over a rail"),
        "pair_latency": Metric("us", "median round trip of 64 bytes over a rail, by TCP"),
        "pair_backend": Metric("text", "what the rails were measured with"),
        **PORT_METRICS,
    }

    @classmethod
    def timed_s(cls, params: Any, devices: int) -> float:
        """Both directions of each rail and variant alone, and all together."""
        rails, variants = len(params.get("rails") or ()), int(params.get("variants") or 1)
        each = float(params.get("seconds") or 0.0) + float(params.get("warmup_s") or 0.0)
        return 2 * each * (rails * variants + (rails > 1) * min(variants, TOGETHER_VARIANTS))

    def run(self, context: Context) -> None:
        """Meets the partner and measures. Raises ValueError for parameters that do not fit."""
        rails, step = _rails(context.params["rails"]), _step(context)
        clock = RealClock()
        try:
            meeting = _meet(context, step)
        except PartnerLost as error:
            context.emit("pair_met", "node", value=0, labels=_with(context), note=str(error))
            return
        with contextlib.closing(meeting):
            try:
                rails = [_reached(rail, meeting) for rail in rails]
                backend, why = _backend(context, meeting)
                context.emit("pair_backend", "node", text=backend.name, note=why)
                with watched_ports(context):
                    self._measure(context, meeting, rails, backend, Tcp(clock), step)
            except PartnerLost as error:
                context.emit("pair_met", "node", value=0, labels=_with(context), note=str(error))
                return
        context.emit("pair_met", "node", value=1, labels=_with(context))

    def _measure(
        self, context: Context, meeting: Meeting, rails: Sequence[Rail], backend: Backend, tcp: Tcp, step: Step
    ) -> None:
        def where(arrived: Arrived) -> tuple[str, dict[str, Any]]:
            device = f"nic:{arrived.rail.device or arrived.rail.interface or arrived.rail.name}"
            labels = {"rail": arrived.rail.name, "mode": arrived.mode, "variant": arrived.variant, **_with(context)}
            if gpu := "" if arrived.mode == HOST else backend.gpu(arrived.rail):
                labels["gpu"] = gpu
            return device, labels

        def report(arrived: Arrived) -> None:
            (device, labels), transfer = where(arrived), arrived.transfer
            rate = None if transfer.missed else transfer.rate
            context.emit("pair_bandwidth", device, value=rate, labels=labels, note=transfer.trouble)

        def count(arrived: Arrived) -> None:
            device, labels = where(arrived)
            if arrived.transfer.wrong is not None:
                context.emit("pair_wrong_bytes", device, value=arrived.transfer.wrong, labels=labels)

        def delays(rail: Rail, times: list[float]) -> None:
            device, labels = f"nic:{rail.device or rail.interface or rail.name}", {"rail": rail.name, **_with(context)}
            if times:
                context.emit("pair_latency", device, value=1e6 * median(times), labels=labels, samples=len(times))
            else:
                context.emit("pair_latency", device, labels=labels, note="no small message came back")

        leads = context.params["role"] == "join"
        by_tcp = _by_tcp(meeting, rails, backend)
        pair = Pair(meeting, rails, backend, tcp, step, leads, report, count, delays, by_tcp)
        context.progress(f"measuring {len(rails)} rails with {context.params['partner']}")
        pair.run(_count(context, "variants", VARIANTS_MAX), bool(context.params["crossed"]))


def _with(context: Context) -> dict[str, str]:
    return {"partner": str(context.params["partner"])}


def _meet(context: Context, step: Step) -> Meeting:
    given = context.params
    for name in ("partner", "address", "session"):
        if not isinstance(given[name], str) or not given[name]:
            raise ValueError(f"{name} must be a text, not {given[name]!r}")
    if given["role"] not in ("serve", "join"):
        raise ValueError(f"role must be serve or join, not {given['role']!r}")
    ports = ports_of("ports", given)
    # The partner is silent while it imports PyTorch, or while it waits for a rail that is dead.
    limit_s = 60.0 + 4 * step.limit_s
    how = given["session"], float(given["join_timeout_s"]), limit_s, RealClock()
    return serve(ports, *how) if given["role"] == "serve" else join(given["address"], ports, *how)


def _backend(context: Context, meeting: Meeting) -> tuple[Backend, str]:
    """The backend of both nodes. Where one lacks it, both use TCP, so that the pair is measured all the same; and why
    they do, "" if they do not."""
    wanted, why = str(context.params["backend"]), ""
    backend: Backend = Tcp(RealClock())
    try:
        if wanted == "ib_write_bw":
            backend = IbWrite(context)
        elif wanted in ("nccl", "gloo"):
            backend = Collective(context, wanted, meeting.own_address, int(context.params["mib"]))
        elif wanted != "tcp":
            raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, not {wanted!r}")
    except NoBackend as error:
        why = str(error)
    meeting.tell("backend", name=backend.name)
    other = meeting.hear("backend")["name"]
    if other != backend.name or why:
        return Tcp(RealClock()), why or f"the partner lacks {backend.name}"
    return backend, ""


def _by_tcp(meeting: Meeting, rails: Sequence[Rail], backend: Backend) -> list[str]:
    """The rails over whose port TCP goes on both nodes. An address alone may be that of the management network."""
    own = [rail.name for rail in rails if backend.name == Tcp.name or _has_interface(rail)]
    meeting.tell("by_tcp", rails=own)
    theirs = meeting.hear("by_tcp")["rails"]
    return [name for name in own if isinstance(theirs, list) and name in theirs]


def _has_interface(rail: Rail) -> bool:
    return bool(rail.interface) and (not rail.device or rail.interface in interfaces(Files(), rail.device))


def _rails(given: Any) -> list[Rail]:
    if not isinstance(given, list) or not 0 < len(given) <= RAILS_MAX:
        raise ValueError(f"rails must be a list of 1 to {RAILS_MAX}, not {given!r}"[:300])
    try:
        rails = [Rail(**each) for each in given]
    except TypeError as error:
        raise ValueError(f"a rail cannot be used: {error}") from error
    if len({rail.name for rail in rails}) != len(rails):
        raise ValueError("two rails have one name")
    return rails


def _reached(rail: Rail, meeting: Meeting) -> Rail:
    if rail.own:
        return rail
    return dataclasses.replace(rail, own=meeting.own_address, other=meeting.other_address)


def _count(context: Context, name: str, most: int) -> int:
    value = context.params[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
        raise ValueError(f"{name} must be a number from 1 to {most}, not {value!r}")
    return value


def _step(context: Context) -> Step:
    streams = _count(context, "streams", STREAMS_MAX)
    seconds, warmup_s, connect_s = (float(context.params[name]) for name in ("seconds", "warmup_s", "connect_s"))
    if not (0 < seconds < 3600 and 0 <= warmup_s < 3600 and 0 < connect_s < 3600):
        raise ValueError("seconds, warmup_s and connect_s must be positive and below an hour")
    return Step(seconds, warmup_s, streams, context.seed, connect_s)
