"""A cable that spoils data: passes frames between two interfaces, and exchanges two words of some on one path.

Run inside the namespace as ``python relay.py INTERFACE INTERFACE ADDRESSES ADDRESSES``. Frames between an address of
the first list and one of the second are spoilt. TCP's checksum is a sum of 16-bit words, so exchanging two of them
keeps it right: what a switch with a bad memory does behind the network cards' checks.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys

PAYLOAD_AT = 200
"""Past the headers of Ethernet, IP and TCP."""
EVERY = 5
_ETH_P_ALL = 3
_PACKET_OUTGOING = 4
_SO_RCVBUFFORCE = 33
"""Unlike SO_RCVBUF it is not cut to net.core.rmem_max, which holds some twenty jumbo frames."""


def spoilt(frame: bytes) -> bytes:
    """The frame with the first two different 16-bit words of its payload exchanged."""
    for at in range(PAYLOAD_AT, len(frame) - 4, 2):
        if frame[at : at + 2] != frame[at + 2 : at + 4]:
            return frame[:at] + frame[at + 2 : at + 4] + frame[at : at + 2] + frame[at + 4 :]
    return frame


def hurry() -> None:
    """Runs before all other work here: a cable does not wait for a processor, and one that does looks dead."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:  # a container without CAP_SYS_NICE, or a control group without real-time shares
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -19)


def main(names: list[str], ours: set[bytes], theirs: set[bytes]) -> None:
    """Relays until it is ended."""
    hurry()
    ends = []
    for name in names:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        end.bind((name, 0))
        end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 22)
        ends.append(end)
    chosen = selectors.DefaultSelector()
    for end, other in (ends, ends[::-1]):
        chosen.register(end, selectors.EVENT_READ, other)
    count = 0
    while True:
        for key, _ in chosen.select():
            frame, where = key.fileobj.recvfrom(65536)
            if where[2] == _PACKET_OUTGOING:
                continue
            source, target = frame[26:30], frame[30:34]
            if len(frame) > 2 * PAYLOAD_AT and (
                (source in ours and target in theirs) or (source in theirs and target in ours)
            ):
                count += 1
                frame = spoilt(frame) if count % EVERY == 0 else frame
            try:
                key.data.send(frame)
            except OSError:  # the queue is full, or the link is down: a cable loses frames too
                continue


if __name__ == "__main__":
    main(sys.argv[1:3], *({socket.inet_aton(each) for each in names.split(",")} for names in sys.argv[3:5]))
