"""torch.distributed between the ranks of a block: NCCL between GPUs, gloo between CPUs.

Limits of the process group are far beyond the block's own: the hub decides who is lost or stuck, and a library
that gives up first could only report that something failed somewhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import ipaddress
import os
import socket
from collections.abc import Iterator, MutableMapping
from typing import Any

from muster_node.cluster.rendezvous.rank import RankGroup
from muster_node.probe import Skip

_LIMIT_FACTOR = 10.0
_LOOPBACK = 0x8  # IFF_LOOPBACK, netdevice(7)


class Fabric:
    """The collectives of this block. ``device`` is where their tensors live."""

    def __init__(self, torch: Any, device: Any) -> None:
        self.device = device
        self._torch = torch
        self._one = torch.ones(1, device=device)

    def settle(self) -> None:
        """Returns once the device has done all queued work."""
        if self.device.type == "cuda":
            self._torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Returns once every rank has called it: a sum of one element, on the same path as the collectives."""
        self._torch.distributed.all_reduce(self._one)
        self.settle()


def _backend(device: Any) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


@contextlib.contextmanager
def open_fabric(torch: Any, group: RankGroup, device: Any) -> Iterator[Fabric]:
    """The fabric of the whole block, for the block. Raises Skip where PyTorch lacks its backend.

    Raises ValueError where this rank's backend is not that of the others, whom it meets in whatever phase it is.
    """
    block, dist = group.block, torch.distributed
    _require(torch, device)
    group.agree(f"{_backend(device)} of PyTorch {torch.__version__}")
    interface = block.interface or interface_of(group.local_address)
    choose_interface(interface, os.environ)
    unsure = "" if interface else f", over an interface of its choice: none but the loopback has {group.local_address}"
    # Watchdogs that abort the process would cost the measurements made so far.
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    limit = datetime.timedelta(seconds=_LIMIT_FACTOR * block.progress_timeout_s)
    store = listening_store(dist, group.local_address, group.world, limit) if group.rank == 0 else None
    address, port = group.gather((group.local_address, store.port) if store is not None else None)[0]
    with group.waiting(f"torch.distributed's rendezvous{unsure}"):
        if store is None:
            store = dist.TCPStore(address, port, group.world, False, limit)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(_backend(device), store=store, rank=group.rank, world_size=group.world, timeout=limit)
        fabric = Fabric(torch, device)
        fabric.barrier()
    yield fabric
    # Only at a good end: taking a group down waits for partners, and after a failure this process ends anyway.
    dist.destroy_process_group()


def listening_store(dist: Any, address: str, world: int, limit: datetime.timedelta) -> Any:
    """torch's TCPStore for ``world`` ranks, on a port that the kernel chooses, at this address alone.

    Anyone who reaches a store may write into it, and by itself it listens on all addresses, whichever it is given.
    """
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port, handle = listener.getsockname()[1], listener.detach()
    return dist.TCPStore(address, port, world, True, limit, wait_for_workers=False, master_listen_fd=handle)


def _require(torch: Any, device: Any) -> None:
    backend, dist = _backend(device), torch.distributed
    if not dist.is_available() or not getattr(dist, f"is_{backend}_available")():
        raise Skip(f"PyTorch was built without {backend}")


def choose_interface(name: str, environment: MutableMapping[str, str]) -> None:
    """Has gloo and NCCL use this network interface; "" leaves them their choice."""
    # By itself gloo takes the interface of the host's name, which need not resolve or be reachable; NCCL guesses.
    if name:
        environment["GLOO_SOCKET_IFNAME"] = name
        environment.setdefault("NCCL_SOCKET_IFNAME", "=" + name)


class _Address(ctypes.Structure):
    """The beginning of struct ifaddrs, getifaddrs(3)."""


_Address._fields_ = [
    ("next", ctypes.POINTER(_Address)), ("interface", ctypes.c_char_p), ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]  # fmt: skip


def interface_of(address: str) -> str:
    """The network interface that has this address, as gloo and NCCL name it; "" if none has it.

    It is also "" if the loopback has the address, as on hosts that route by BGP: gloo and NCCL would take the
    loopback's first address, 127.0.0.1 (github.com/NVIDIA/nccl/issues/1053).
    """
    family, at = (socket.AF_INET6, 8) if ":" in address else (socket.AF_INET, 4)  # its place in the sockaddr
    try:
        wanted = socket.inet_pton(family, address)
    except OSError:
        return ""
    libc, first = ctypes.CDLL(None), ctypes.POINTER(_Address)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return ""
    try:
        entry = first
        while entry:
            found = entry.contents
            if found.address and ctypes.c_uint16.from_address(found.address).value == family:
                here = ctypes.string_at(found.address + at, len(wanted))
                if here == wanted:
                    beyond = found.flags & _LOOPBACK and not ipaddress.ip_address(address).is_loopback
                    return "" if beyond else os.fsdecode(found.interface)
            entry = found.next
    finally:
        libc.freeifaddrs(first)
    return ""
