"""Calls that may hang (a driver that does not answer, a dead mount), with an end to the waiting."""

from __future__ import annotations

import threading
import time
from typing import Callable, TypeVar

T = TypeVar("T")

TICK_S = 0.05


class Hung(Exception):
    """The call did not return in time, or the waiting was cut short; the message is one sentence."""


def bounded(what: str, call: Callable[[], T], limit_s: float, stop: Callable[[], str | None] = lambda: None) -> T:
    """Returns ``call()``; waits at most ``limit_s`` seconds, and only until ``stop()`` returns a reason to stop.

    The call runs in a daemon thread, which is left behind if it hangs. Raises Hung, or whatever the call raises.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="bounded: " + what, daemon=True)
    thread.start()
    give_up_at = time.monotonic() + limit_s
    while thread.is_alive():
        thread.join(TICK_S)
        if not thread.is_alive():
            break
        if time.monotonic() > give_up_at:
            raise Hung(f"{what} did not answer within {limit_s:.0f} s")
        why = stop()
        if why:
            raise Hung(f"{what} was not waited for: {why}")
    if errors:
        raise errors[0]
    return answers[0]
