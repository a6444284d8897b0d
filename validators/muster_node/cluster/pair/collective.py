"""NCCL between one GPU of each node with NCCL_IB_HCA pinned to one rail; gloo between CPUs, pinned by interface.

The libraries read their choice of NIC once in a process, so each transfer has a process of its own on either side.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import pkgutil
import socket
import sys
from collections.abc import Mapping
from typing import Any

from muster_node.cluster.collectives.fabric import choose_interface, interface_of
from muster_node.cluster.pair.backend import (
    Backend,
    Endpoint,
    NoBackend,
    NotTried,
    Rail,
    Receiver,
    Step,
    Transfer,
    not_sent,
)
from muster_node.hardware.seam import Hardware
from muster_node.probe import Context, Skip
from muster_node.tools.run import run_tool, started

_START_S = 60.0
"""Importing PyTorch and opening a CUDA context takes many seconds on a cold node."""
_CHILD = "collective_child.py"


_HAS = {
    "nccl": "import torch; print(torch.distributed.is_nccl_available() and torch.cuda.is_available())",
    "gloo": "import torch; print(torch.distributed.is_gloo_available())",
}
"""Programs that print whether PyTorch has the library, and devices for it."""


class Collective(Backend):
    """Sends of a torch.distributed group of two. ``library``: "nccl" or "gloo"; ``address``: this node's own.

    Raises NoBackend where PyTorch, the library, or a GPU for NCCL is missing: that is no rail's fault.
    """

    def __init__(self, context: Context, library: str, address: str, mib: int) -> None:
        if why := _lacks(context, library):
            raise NoBackend(why)
        self.name = library
        self._context, self._address, self._mib = context, address, mib
        self._uuids = uuids_of(context.hardware) if library == "nccl" else {}

    def gpu(self, rail: Rail) -> str:
        """The one of its slot or place, where NCCL is the library."""
        device = _gpu(rail, self._uuids)
        return device if device in self._uuids else ""

    def receive(self, rail: Rail, step: Step) -> Receiver:
        """Starts this side's process, which waits for the other's."""
        with socket.socket(socket.AF_INET6 if ":" in self._address else socket.AF_INET) as free:
            free.bind((self._address, 0))
            port = int(free.getsockname()[1])
        endpoint: Endpoint = {"address": self._address, "port": port}
        return self._side(rail, endpoint, step, receives=True)

    def send(self, rail: Rail, endpoint: Endpoint, step: Step) -> float | None:
        """Runs this side's process to its end."""
        with contextlib.closing(self._side(rail, endpoint, step, receives=False)) as side:
            side.result()
        return None

    def _side(self, rail: Rail, endpoint: Endpoint, step: Step, receives: bool) -> _Side:
        pinned = environment(self.name, rail, self._uuids)
        if self.name == "nccl" and "NCCL_SOCKET_IFNAME" not in os.environ:
            # Over it NCCL's processes meet; by itself it takes any that is up, such as one of containers.
            choose_interface(interface_of(self._address), pinned)
        return _Side(self._context, self.name, pinned, endpoint, rail.device, step, self._mib, receives)


def _lacks(context: Context, library: str) -> str:
    """Why the library cannot be used here, "" if it can. Asked in a process of its own, as each transfer has one."""
    if importlib.util.find_spec("torch") is None:
        return f"{library} needs PyTorch, which is not installed"
    try:
        done = run_tool(context, [sys.executable, "-c", _HAS[library]], _START_S)
    except Skip as error:
        return str(error)
    if done.status == 0 and done.out.split()[-1:] == ["True"]:
        return ""
    if done.status == 0:
        return f"PyTorch has no {library}" + (", or no GPU for it" if library == "nccl" else "")
    return f"PyTorch cannot be imported: {done.last_line() if done.status is not None else 'it did not end in time'}"


def uuids_of(hardware: Hardware) -> dict[str, str]:
    """UUID by GPU, in slot order, of the GPUs that answer."""
    found = {fact.device: fact.text for fact in hardware.inventory() if fact.name == "gpu_uuid" and fact.text}
    return {device.id: found[device.id] for device in hardware.devices("gpu") if device.id in found}


def environment(library: str, rail: Rail, uuids: Mapping[str, str]) -> dict[str, str]:
    """What pins a library to a rail and its GPU. The "=" keeps mlx5_1 from meaning mlx5_10 too.

    ``uuids``: UUID by GPU: CUDA numbers GPUs in another order than Muster. Raises NotTried where the rail's GPU cannot
    be chosen.
    """
    interface = rail.interface or interface_of(rail.own)
    if library == "gloo":
        return {"GLOO_SOCKET_IFNAME": interface} if interface else {}
    gpu = {"CUDA_VISIBLE_DEVICES": _uuid(rail, uuids)}
    pinned = {
        "NCCL_NET": _by_verbs(), "NCCL_IB_HCA": f"={rail.device}", "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0",
    }  # fmt: skip
    if not rail.device:
        pinned = {"NCCL_IB_DISABLE": "1"} | ({"NCCL_SOCKET_IFNAME": f"={interface}"} if interface else {})
    return gpu | pinned


def _by_verbs() -> str:
    """NCCL's network for a rail with an RDMA device: the site's own, unless that is sockets.

    Where NCCL is not given one and finds no usable port, it goes over sockets of another interface, and a dead rail
    would carry.
    """
    own = os.environ.get("NCCL_NET", "")
    return own if own.lower() not in ("", "socket") else "IB"


def _gpu(rail: Rail, uuids: Mapping[str, str]) -> str:
    if rail.gpu is not None and rail.named:
        return f"gpu{rail.gpu}"
    place = rail.gpu or 0
    return next(itertools.islice(uuids, place, None), f"GPU {place + 1} of those that answer")


def _uuid(rail: Rail, uuids: Mapping[str, str]) -> str:
    device = _gpu(rail, uuids)
    if device not in uuids:
        raise NotTried(f"{device}, of rail {rail.name}, is not there: repair it, or correct label rails")
    if list(uuids.values()).count(uuids[device]) > 1:
        raise NotTried(f"{device} of rail {rail.name} reports the UUID of another GPU")
    return uuids[device]


class _Side(Receiver):
    def __init__(
        self,
        context: Context,
        library: str,
        pinned: dict[str, str],
        endpoint: Endpoint,
        device: str,
        step: Step,
        mib: int,
        receives: bool,
    ) -> None:
        self.endpoint = endpoint
        self._device, self._limit_s = device if library == "nccl" else "", _START_S + step.limit_s
        job: dict[str, Any] = {
            **endpoint, "library": library, "rank": 0 if receives else 1, "seconds": step.seconds,
            "warmup_s": step.warmup_s, "seed": step.seed, "mib": mib, "limit_s": _START_S,
        }  # fmt: skip
        source = pkgutil.get_data("muster_node.cluster.pair", _CHILD)
        command = [sys.executable, "-c", (source or b"").decode(), json.dumps(job)]
        self._running = started(context, command, pinned)
        try:
            self._tool = self._running.__enter__()
        except Skip as error:
            raise NotTried(str(error)) from error

    def result(self) -> Transfer:
        """What the process printed last."""
        done = self._tool.wait(self._limit_s)
        try:
            found = json.loads((done.out.strip().splitlines() or [""])[-1])
            if done.status == 0:
                return Transfer(float(found["gbits"]), int(found["wrong"]))
        except (ValueError, KeyError, TypeError):
            pass
        ended = "did not end in time" if done.status is None else done.last_line()
        raise not_sent(self._device, f"the process of {self.endpoint['port']} failed: {ended}", done.err)

    def close(self) -> None:
        """Ends the process."""
        self._running.__exit__(None, None, None)
