"""Ports, services, disks and links that were up once on a node, and are now down or gone. Pure.

They are remembered since the node entered service (``forgotten``): until it does so again, what is removed on purpose
counts as missing. If another port or disk appears, a missing one was renamed or replaced, and the other has to be up.
Ports are identified by their adapters' addresses, since a driver may number them differently at the next boot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from muster_criteria.health.readings import Fact

UP = "up|"
"""Prefix in the remembered counters: what was up once, as in "up|net_carrier|nic:eth0"."""
UNREAD = f"{UP}unread|"
"""Prefix in the remembered counters: a reading that failed once, and is good again when it succeeds."""
WAS_UP, NEVER_UP, REPLACED = 1.0, 0.0, -1.0
"""Of a port, service or disk: it has to be up; it need not; another one has taken its place."""
NOT_THERE = "not there"
LENT = {"net_carrier": "net_elsewhere", "ib_port_active": "ib_elsewhere"}
"""{kind of port: the fact that names the addresses of the node's adapters whose ports are lent to a container}"""
PCI = "pci"
"""The label of a port: its adapter's address. It is remembered, as in "up|pci|net_carrier|nic:eth0|ADDRESS"."""
ATTACHED = "attached"
"""The label of a disk that comes and goes: a volume over a network, or of a cloud."""
_RUNNING = frozenset({"active", "reloading", "activating"})
_JOINED = {"fabric_state": {"completed"}, "imex": {"READY", "UP", "service active"}}
"""By fact, the texts of a GPU that has joined its NVLink fabric, and of a node that has joined its IMEX domain."""
_IMEX_READ_BY = {"imex", "hardware", "services"}
"""If one of these readings failed, a missing IMEX does not count: it may be known by its service, from systemd."""
_AT_MOST = {"persistence_mode": "persistence_lost", "nvlink_active": "nvlink_down", "pcie_width": "pcie_degraded"}
"""{fact: check} of numbers that should stay as high as they ever were."""
_CLEAN = re.compile(r"[^A-Za-z0-9_.:-]+")


class State(NamedTuple):
    """A state, as a reading shows it."""

    check: str
    device: str
    value: str
    bad: bool


def forgotten(counters: Mapping[str, float]) -> dict[str, float]:
    """Returns what is still remembered of a node that enters service; from then on, it has to keep what it has then."""
    return {key: value for key, value in counters.items() if key.startswith(UNREAD) or not key.startswith(UP)}


def states(
    facts: Sequence[Fact], unread: Collection[str], known: Mapping[str, float], up: dict[str, float]
) -> Iterator[State]:
    """Yields what was up once, and whether it is now. ``unread``: the node's readings that failed or hung.

    ``known``: what is remembered; what is to be remembered is added to ``up``.
    """
    known = {key: value for key, value in known.items() if key.startswith(UP)}
    yield from _ports(facts, "ports" not in unread, known, up)
    services = [(fact.device, fact.text) for fact in facts if fact.name == "service" and fact.text]
    for device, text, running in _kept("service", services, _RUNNING, known, up, read="services" not in unread):
        yield State(f"service/{_CLEAN.sub('-', device)}", "node", text, not running)
    disks = [(fact.device, fact.text) for fact in facts if fact.name == "nvme_state" and ATTACHED not in fact.labels]
    heirs = {device for device, _ in disks}
    for device, text, live in _kept("nvme_state", disks, {"live"}, known, up, read="disks" not in unread, heirs=heirs):
        if text == NOT_THERE:  # one that is there is judged by its state alone
            yield State("nvme_state", device, text, not live)
    for name, good in _JOINED.items():
        joined = [(fact.device, fact.text) for fact in facts if fact.name == name and fact.text]
        read = name == "imex" and not _IMEX_READ_BY & set(unread)  # a GPU that is gone is counted as missing
        for device, text, well in _kept(name, joined, good, known, up, read=read):
            yield State(f"{name}_lost", device, text, not well)
    for fact in facts:
        if fact.name in _AT_MOST and fact.value is not None:
            yield from _setting(fact, fact.value, known, up)
    for kind, check in (*((each, "port_down") for each in LENT), ("nvme_state", "nvme_state")):
        before = _key(kind, "")
        over = [key[len(before) :] for key, value in up.items() if key.startswith(before) and value == REPLACED]
        yield from (State(check, device, "", False) for device in over)


def _ports(facts: Sequence[Fact], read: bool, known: Mapping[str, float], up: dict[str, float]) -> Iterator[State]:
    ports: list[State] = []
    named = known
    for kind, lent in LENT.items():
        here = [fact for fact in facts if fact.name == kind]
        known = _renumbered(kind, here, known, up)
        away = {fact.device for fact in facts if fact.name == lent}
        at = _addresses(kind, here, known, up)
        spared = {device for device, address in at.items() if address in away}
        up.update((_key(f"lent|{kind}", address), 1.0) for address in away - set(at.values()))
        marks = {fact.device: _key(f"lent|{kind}", at.get(fact.device, "")) for fact in here}
        heirs = {device for device, mark in marks.items() if not known.get(mark)}  # one that was lent replaces none
        up.update((mark, 0.0) for device, mark in marks.items() if device not in heirs)
        seen = [(fact.device, "up" if fact.value else "") for fact in here]
        kept = _kept(kind, seen, {"up"}, known, up, read=read, heirs=heirs, spared=spared)
        ports += [State("port_down", device, "" if text == "up" else text, not well) for device, text, well in kept]
    all_down = len(ports) > 1 and all(port.bad for port in ports)
    if len(ports) > 1:
        yield State("all_ports_down", "node", f"all {len(ports)} ports" if all_down else "", all_down)
    if not all_down:
        yield from ports
    ports_keys = tuple(_key(kind, "") for kind in LENT)
    for key, value in up.items():  # its name is now another port's, which need not be up
        if key.startswith(ports_keys) and value == NEVER_UP and named.get(key) == WAS_UP:
            yield State("port_down", key.rpartition("|")[2], "", False)


def _addresses(kind: str, here: Sequence[Fact], known: Mapping[str, float], up: dict[str, float]) -> dict[str, str]:
    """{port: its adapter's address, now or last}; if a port has moved, its address before is cleared in ``up``."""
    at = _shown(here)
    for device, address in _remembered(kind, known):
        if at.setdefault(device, address) != address:
            up[_at(kind, device, address)] = 0.0
    up.update((_at(kind, device, address), 1.0) for device, address in at.items())
    return at


def _shown(here: Sequence[Fact]) -> dict[str, str]:
    return {fact.device: _CLEAN.sub("-", fact.labels[PCI])[:40] for fact in here if fact.labels.get(PCI)}


def _remembered(kind: str, known: Mapping[str, float]) -> list[tuple[str, str]]:
    """(port, address) as they are remembered."""
    before = _key(f"{PCI}|{kind}", "")
    kept = (key[len(before) :].partition("|") for key, value in known.items() if key.startswith(before) and value)
    return [(device, address) for device, _, address in kept]


def _at(kind: str, device: str, address: str) -> str:
    return _key(f"{PCI}|{kind}", f"{device}|{address}")


def _renumbered(
    kind: str, here: Sequence[Fact], known: Mapping[str, float], up: dict[str, float]
) -> Mapping[str, float]:
    """Returns what is remembered, with each port under the name that its adapter's address has now.

    Only if the adapters are the same as before, with one port each: if one came or went, addresses shift, and names are
    more reliable. A port that was never up, and is gone, is ignored.
    """
    shown = _shown(here)
    was = {device: known.get(_key(kind, device), REPLACED) for device, _ in _remembered(kind, known)}
    had = [
        (device, at) for device, at in _remembered(kind, known)
        if was[device] == WAS_UP or (was[device] == NEVER_UP and device in shown)
    ]  # fmt: skip
    now = {address: device for device, address in shown.items()}
    if sorted(at for _, at in had) != sorted(now) or len(now) != len(shown):
        return known
    moved = {device: now[at] for device, at in had if now[at] != device}
    found = dict(known)
    for device, address in had:
        if device in moved:
            found[_key(kind, device)] = up[_key(kind, device)] = REPLACED
            found[_at(kind, device, address)] = up[_at(kind, device, address)] = 0.0
    for device, address in had:
        if device in moved:
            found[_key(kind, moved[device])] = known[_key(kind, device)]
            found[_at(kind, moved[device], address)] = up[_at(kind, moved[device], address)] = 1.0
    return found


def _kept(
    kind: str, seen: Sequence[tuple[str, str]], good: Collection[str], known: Mapping[str, float], up: dict[str, float],
    *, read: bool, heirs: Collection[str] = (), spared: Collection[str] = (),
) -> Iterator[tuple[str, str, bool]]:  # fmt: skip
    """Yields (device, what it shows, whether that is good) of what was good once. ``seen``: (device, what it shows).

    ``read``: whether all that are there were seen. ``heirs``: of these, one that was not there before takes the place
    of one that is gone, and has to be good as that was. ``spared``: what is lent: not missed, and nothing replaces it.
    """
    shown, before = dict(seen), _key(kind, "")
    kept = {key[len(before) :]: value for key, value in known.items() if key.startswith(before)}
    had = [device for device, value in kept.items() if value == WAS_UP] if read else []
    gone = [device for device in had if device not in shown and device not in spared]
    new = [device for device in shown if device in heirs and kept.get(device, REPLACED) == REPLACED]
    pairs = dict(zip(gone, sorted(new, key=lambda device: shown[device] not in good), strict=False))
    kept |= dict.fromkeys(pairs, REPLACED) | dict.fromkeys(pairs.values(), WAS_UP)
    for device, text in shown.items():
        was = WAS_UP if text in good else kept.get(device, NEVER_UP)
        kept[device] = max(was, NEVER_UP)
        if was == WAS_UP:
            yield device, text, text in good
    for device in gone[len(pairs) :]:
        yield device, NOT_THERE, False
    up.update((_key(kind, device), value) for device, value in kept.items())


def _setting(fact: Fact, value: float, known: Mapping[str, float], up: dict[str, float]) -> Iterator[State]:
    """Whether a number of a GPU is as high as it was ever read."""
    key = _key(fact.name, fact.device)
    most = up[key] = max(value, known.get(key, 0.0))
    text = f"{value:.0f} of {most:.0f}" if value < most and most > 1 else ""
    yield State(_AT_MOST[fact.name], fact.device, text, value < most)


def _key(kind: str, device: str) -> str:
    return f"{UP}{kind}|{device}"
