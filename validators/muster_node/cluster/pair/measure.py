"""The steps of a pair test, in lockstep on both nodes: each rail alone in both directions, then all together.

Both sides go through the same steps, and by its role (the node that joined leads) each knows whether it receives.
What a node reports is what arrived at it; its partner reports the other direction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Collection, Sequence
from typing import Any, Callable

from muster_node.cluster.pair.backend import Backend, NotSent, NotTried, Rail, Receiver, Step, Transfer
from muster_node.cluster.pair.meeting import Meeting
from muster_node.cluster.pair.tcp import Tcp

DEAD_VARIANTS = 2
"""Of a rail over which nothing went either way in so many flows running, no further ones are tried: each takes until it
is given up, and all of them longer than the probe may, so that later rails would not be measured."""

TOGETHER_VARIANTS = 3
"""Of a rail that is measured over more flows alone, so many with all rails at once: in a tenth of them lies a hot spot,
and of three in one of a thousand."""

ALONE, TOGETHER, CROSSED, HOST = "alone", "together", "crossed", "host_tcp"
"""``crossed``: this rail's GPU over the next rail's NIC. ``host_tcp``: plain TCP where the backend failed, to tell host
and fabric apart; only of a rail whose port TCP goes over too."""


@dataclasses.dataclass(frozen=True)
class Arrived:
    """One transfer to this node."""

    rail: Rail
    mode: str
    variant: int
    transfer: Transfer


@dataclasses.dataclass(frozen=True)
class Pair:
    """This node's side. ``leads``: this node joined the other. ``by_tcp``: the rails whose ports carry TCP.

    ``count`` gets what arrived before the partner reports it as sent, ``report`` after that.
    """

    meeting: Meeting
    rails: Sequence[Rail]
    backend: Backend
    tcp: Tcp
    step: Step
    leads: bool
    report: Callable[[Arrived], None]
    count: Callable[[Arrived], None]
    delays: Callable[[Rail, list[float]], None]
    by_tcp: Collection[str]

    def run(self, variants: int, crossed: bool = False) -> None:
        """All steps. Raises PartnerLost."""
        for at, rail in enumerate(self.rails):
            dead = 0
            for variant in range(variants):
                dead = dead + 1 if self._both_ways([at], ALONE, variant) else 0
                if dead == DEAD_VARIANTS:
                    break
            if rail.name in self.by_tcp:
                self._delay(rail)
        if len(self.rails) > 1:
            for variant in range(min(variants, TOGETHER_VARIANTS)):
                if self._both_ways(list(range(len(self.rails))), TOGETHER, variant):
                    break  # a dead rail takes until it is given up
        if crossed and len(self.rails) > 1:
            for at in range(len(self.rails)):
                self._both_ways([at], CROSSED, 0)

    def _both_ways(self, at: list[int], mode: str, variant: int) -> bool:
        """Whether nothing went over one of the rails in either direction; both sides return the same."""
        dead = set(at)
        for to_leader in (True, False):
            receives = to_leader is self.leads
            failed = self._transfer(at, mode, variant, receives, self.backend)
            dead &= set(failed)
            failed = [place for place in failed if self.rails[place].name in self.by_tcp]
            if failed and self.backend.name != self.tcp.name:
                self._transfer(failed, HOST, variant, receives, self.tcp)
        return bool(dead)

    def _transfer(self, at: list[int], mode: str, variant: int, receives: bool, backend: Backend) -> list[int]:
        """One direction over some rails at once. Returns the rails that failed, the same list on both sides."""
        used = [self._crossed(place) if mode == CROSSED else self.rails[place] for place in at]
        step = dataclasses.replace(self.step, seed=self.step.seed + 1009 * variant + 31 * at[0])
        with contextlib.ExitStack() as opened:
            if receives:
                return self._receive(at, used, mode, variant, backend, step, opened)
            return self._send(at, used, backend, step)

    def _crossed(self, place: int) -> Rail:
        following = self.rails[(place + 1) % len(self.rails)]
        own = self.rails[place]
        return dataclasses.replace(following, name=own.name, gpu=own.gpu, named=own.named)

    def _receive(
        self, at: list[int], used: list[Rail], mode: str, variant: int, backend: Backend, step: Step,
        opened: contextlib.ExitStack,
    ) -> list[int]:  # fmt: skip
        receivers: dict[int, Receiver] = {}
        found: dict[int, Transfer] = {}

        def receive(place: int) -> None:
            try:
                receivers[place] = backend.receive(used[at.index(place)], step)
            except NotSent as error:
                found[place] = _nothing(error)

        _at_once(receive, at)
        for receiver in receivers.values():
            opened.enter_context(contextlib.closing(receiver))
        self.meeting.tell("open", ends={place: receiver.endpoint for place, receiver in receivers.items()})

        def take(place: int) -> None:
            try:
                found[place] = receivers[place].result()
                self.count(Arrived(used[at.index(place)], mode, variant, found[place]))
            except NotSent as error:
                found[place] = _nothing(error)

        _at_once(take, list(receivers))
        sent = self.meeting.hear("sent")["rates"]
        failed = []
        for place, rail in zip(at, used):
            transfer = found.get(place, Transfer(0.0, trouble="the receiver failed"))
            by_sender = sent.get(str(place)) if isinstance(sent, dict) else None
            if isinstance(by_sender, list) and len(by_sender) == 2:
                missed, why = by_sender
                trouble = f"{transfer.trouble}; {why}".strip("; ")
                transfer = dataclasses.replace(transfer, trouble=trouble, missed=transfer.missed or missed is True)
            elif isinstance(by_sender, (int, float)) and not transfer.trouble:
                transfer = dataclasses.replace(transfer, rate=float(by_sender))
            if transfer.trouble:
                failed.append(place)
            self.report(Arrived(rail, mode, variant, transfer))
        self.meeting.tell("failed", rails=failed)
        return failed

    def _send(self, at: list[int], used: list[Rail], backend: Backend, step: Step) -> list[int]:
        ends = self.meeting.hear("open")["ends"]
        rates: dict[int, float | list[Any] | None] = {}

        def send(place: int) -> None:
            try:
                end = ends.get(str(place)) if isinstance(ends, dict) else None
                rates[place] = backend.send(used[at.index(place)], end, step) if isinstance(end, dict) else None
            except NotSent as error:
                rates[place] = [isinstance(error, NotTried), str(error)]

        _at_once(send, at)
        self.meeting.tell("sent", rates=rates)
        failed = self.meeting.hear("failed")["rails"]
        return [place for place in at if isinstance(failed, list) and place in failed]

    def _delay(self, rail: Rail) -> None:
        """Round trips of small messages, measured by the leader."""
        if self.leads:
            port = self.meeting.hear("echo")["port"]
            times: list[float] = []
            with contextlib.suppress(NotSent):
                times = self.tcp.round_trips(rail, int(port), self.step) if port else []
            self.delays(rail, times)
            self.meeting.tell("echoed")
            return
        echo = None
        with contextlib.suppress(NotSent):
            echo = self.tcp.answer(rail, self.step)
        thread = threading.Thread(target=_quietly, args=(echo.serve,), daemon=True) if echo else None
        if thread:
            thread.start()
        self.meeting.tell("echo", port=echo.endpoint["port"] if echo else 0)
        self.meeting.hear("echoed")
        if echo:
            echo.close()


def _nothing(error: NotSent) -> Transfer:
    return Transfer(0.0, trouble=str(error), missed=isinstance(error, NotTried))


def _at_once(work: Callable[[int], None], places: list[int]) -> None:
    threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _quietly(work: Callable[[], None]) -> None:
    with contextlib.suppress(NotSent):
        work()
