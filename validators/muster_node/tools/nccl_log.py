"""NCCL's own log: which ranks took part in a collective, and by which algorithm, protocol and transport.

Pure functions of the text that NCCL writes with NCCL_DEBUG=INFO and the subsystems in ``SUBSYSTEMS`` (documented in
NCCL's user guide under environment variables). Its lines have changed over the versions: up to 2.23 algorithms and
protocols are numbers, without the name of the collective, and sizes of gathers are those of the whole buffer or of one
rank.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

SUBSYSTEMS = "INIT,GRAPH,TUNING,COLL,P2P,NET,ENV"
# By their places in NCCL's own lists.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
_IN_SWITCH = ("NVLS", "NVLS_TREE")
"""Algorithms that name their transport themselves: NVSwitches reduce and multicast."""
_CALLS = {
    "all_reduce": ("AllReduce",),
    "all_gather": ("AllGather",),
    "reduce_scatter": ("ReduceScatter",),
    "all_to_all": ("Send", "AlltoAll"),
    "send_recv": ("Send",),
}
"""What NCCL is called for; all_to_all is sends and receives to versions that have no call of its own for it."""
_POINT_TO_POINT = ("all_to_all", "send_recv")
_GATHERING = ("all_gather", "reduce_scatter")

_COMPLETE = re.compile(r"NCCL INFO .*\brank (\d+) nranks (\d+) .*Init COMPLETE", re.IGNORECASE)
_VIA = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\].* via (.+?)\s*$", re.MULTILINE)
_CHOICE = re.compile(r"NCCL INFO (?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
_CALL = re.compile(r"NCCL INFO (\w+): opCount .*\[nranks=(\d+)\]")
_NVLS = re.compile(r"NCCL INFO NVLS multicast support is (not )?available")


@dataclasses.dataclass(frozen=True)
class Logged:
    """Contents of a part of a log: (rank, ranks) of communicators, transports, choices by (call, bytes), and calls."""

    complete: frozenset[tuple[int, int]]
    transports: tuple[str, ...]
    choices: dict[tuple[str, int], tuple[str, ...]]
    calls: frozenset[tuple[str, int]]
    nvls: bool


def parse_nccl_log(text: str) -> Logged:
    """Read a log or a part of one. What is not logged is empty, as is the name of a call in some versions."""
    choices: dict[tuple[str, int], set[str]] = {}
    for call, size, algorithm, protocol in _CHOICE.findall(text):
        chosen = f"{_name(algorithm, _ALGORITHMS)}/{_name(protocol, _PROTOCOLS)}"
        choices.setdefault((call, int(size)), set()).add(chosen)
    return Logged(
        complete=frozenset((int(rank), int(ranks)) for rank, ranks in _COMPLETE.findall(text)),
        transports=tuple(sorted(set(_VIA.findall(text)))),
        choices={key: tuple(sorted(chosen)) for key, chosen in choices.items()},
        calls=frozenset((call, int(ranks)) for call, ranks in _CALL.findall(text)),
        nvls="" in _NVLS.findall(text),
    )


def _name(logged: str, names: Sequence[str]) -> str:
    if logged.isdigit():
        return names[int(logged)] if int(logged) < len(names) else logged
    return logged.upper()


@dataclasses.dataclass(frozen=True)
class Proof:
    """``carried``: algorithm, protocol, transports and number of ranks; or ``why_not``, identified by ``code``.

    ``in_switch``: the NVSwitches did all of it (NVLS), whose rates are not comparable with those of rings.
    """

    carried: str = ""
    why_not: str = ""
    in_switch: bool = False
    code: str = ""


def prove(op: str, size: int, ranks: int, during: Logged, until: Sequence[Logged]) -> Proof:
    """What carried ``op`` over a whole buffer of ``size`` bytes.

    ``during``: what the first rank logged while it ran; ``until``: what every rank logged from its start to then.
    """
    complete = {rank for logged in until for rank, of in logged.complete if of == ranks}
    if len(complete) < ranks:
        return _unproven("not joined", f"{len(complete)} of {ranks} ranks logged that they joined")
    if not any((call, ranks) in during.calls for call in _CALLS[op]):
        return _unproven("not called", f"NCCL logged no call of {op} over {ranks} ranks")
    return carrier(op, size, ranks, during, until)


def carrier(op: str, size: int, ranks: int, during: Logged, until: Sequence[Logged]) -> Proof:
    """As ``prove``, where the call and its ranks are known from elsewhere."""
    algorithms = () if op in _POINT_TO_POINT else _chosen(op, size, ranks, during)
    if op not in _POINT_TO_POINT and not algorithms:
        return _unproven("no algorithm", f"NCCL logged no algorithm for {op} of {size} bytes")
    by_switch = bool(algorithms) and all(chosen.split("/")[0] in _IN_SWITCH for chosen in algorithms)
    silent = sum(1 for logged in until if not logged.transports)
    if silent and not by_switch:
        if len(until) == 1:  # one log of all ranks
            return _unproven("no transport", f"NCCL logged no transport for {op} of {size} bytes")
        return _unproven("no transport", f"{silent} of {ranks} ranks logged no transport")
    transports = sorted({transport for logged in until for transport in logged.transports})
    how = ", ".join(algorithms) or "point to point"
    over = " over {}".format(", ".join(transports)) if transports and not by_switch else ""
    return Proof(carried=f"{how}{over}, {ranks} GPUs", in_switch=by_switch)


def _unproven(code: str, why_not: str) -> Proof:
    return Proof(why_not=why_not, code=code)


def _chosen(op: str, size: int, ranks: int, during: Logged) -> tuple[str, ...]:
    sizes = (size, size // ranks) if op in _GATHERING else (size,)
    keys = [(call, each) for each in sizes for call in _CALLS[op]] + [("", size)]
    return next((during.choices[key] for key in keys if key in during.choices), ())
