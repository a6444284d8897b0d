"""NVML queries: a call that refuses, raises or hangs becomes an answer without a value, never a number or an exception.

A GPU whose call hangs is queried no more, so that it costs one time limit and its own figures; so is one whose calls
return, but are slow. The limit halves with each GPU that hangs, so that all of them together cost less than a minute.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import queue
import threading
import time
from typing import Any, Callable

from muster_node.hardware.seam import NOT_SUPPORTED

CALL_LIMIT_S = 20.0
"""Without persistence mode a driver may take seconds to wake a GPU; no call takes as long as this."""
LEAST_LIMIT_S = 2.0
"""What halving the limit leaves at least: eight GPUs that all hang cost 45.5 s, sixteen 61.5 s."""
SLOW_CALL_S = 0.05
"""Chosen here: NVML answers within milliseconds; only the call that wakes a GPU takes seconds, once."""
SLOW_MAX_S = 12.0
"""Seconds that one GPU may spend in slow calls before it is queried no more: of eight such GPUs 96 s, less than the
120 s that an inventory has, so that none is taken for absent because another one was slow."""
SLOW_SHARE = 0.1
"""Share of the time that slow calls may take for ever: days of a busy machine with a slow call now and then."""

HUNG = -2
UNREADABLE = -3


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer of one NVML call: a value, or None and the reason."""

    value: Any = None
    note: str = ""
    code: int = 0

    def map(self, change: Callable[[Any], Any]) -> Answer:
        """Applies a function to the value; keeps a refusal; notes a value that cannot be converted.

        The binding decodes texts inside a structure only when they are read, which is here.
        """
        if self.value is None:
            return self
        try:
            return dataclasses.replace(self, value=change(self.value))
        except Exception as error:
            return _unreadable("an answer", error)


ALL_ONES = (2**32 - 1, 2**64 - 1)
"""What NVML's own header calls "not available" (NVML_VALUE_NOT_AVAILABLE), and what a GPU off the bus reads as."""


def whole(value: Any) -> Any:
    """The value. Raises ValueError for a number with all its bits set, which is never one."""
    if isinstance(value, int) and value in ALL_ONES:
        raise ValueError("all bits are set")
    return value


def _possible(function: str, value: Any) -> Answer:
    try:
        return Answer(whole(value))
    except ValueError as error:
        return Answer(note=f"NVML: the answer of {function} is no value ({error})", code=UNREADABLE)


def _unreadable(what: str, error: Exception) -> Answer:
    return Answer(note=f"NVML: {what} cannot be read ({type(error).__name__})", code=UNREADABLE)


class _Worker:
    """A thread that makes the calls, so that one that hangs leaves the caller free."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="nvml", daemon=True).start()

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            try:
                self._answers.put((call(), None))
            except BaseException as error:
                self._answers.put((None, error))

    def run(self, call: Callable[[], Any], limit_s: float) -> Any:
        """``call()``'s answer. Raises queue.Empty if there is none in time, or what the call raises."""
        self._calls.put(call)
        answer, error = self._answers.get(timeout=limit_s)
        if error is not None:
            raise error
        return answer


class Nvml:
    """The NVML binding: the pynvml module, or a stand-in in tests."""

    def __init__(self, binding: Any, limit_s: float = CALL_LIMIT_S) -> None:
        self._binding = binding
        self._limit_s = limit_s
        self._worker: _Worker | None = None
        self._lock = threading.Lock()
        self._hung: list[tuple[Any, str]] = []
        self._slow: dict[Any, tuple[float, float]] = {}
        self._lost: set[int] = set()
        self._need_reset: set[int] = set()

    def query(self, function: str, *arguments: Any) -> Answer:
        """One NVML call; an error of any kind or a hang becomes an answer without a value."""
        call = getattr(self._binding, function)
        with self._lock:
            why = self._given_up(arguments)
            if why:
                return Answer(note="NVML: not queried, since " + why, code=HUNG)
            if self._worker is None or self._worker.pid != os.getpid():  # threads do not survive a fork
                self._worker = _Worker()
            begun, limit_s = time.monotonic(), self._limit()
            try:
                return _possible(function, self._worker.run(lambda: call(*arguments), limit_s))
            except queue.Empty:
                why = f"{function} did not answer within {limit_s:g} s"
                self._hung.append((arguments[:1], why))
                self._worker = None
                return Answer(note="NVML: " + why, code=HUNG)
            except self._binding.NVMLError as error:
                return self.refusal(int(error.value), *arguments[:1])
            except Exception as error:  # a text that is no UTF-8, or a structure that the binding does not know
                return _unreadable(f"the answer of {function}", error)
            finally:
                self._took(arguments, time.monotonic() - begun)

    def _limit(self) -> float:
        """Seconds for the next call: half as many after each subject that hung."""
        return max(min(self._limit_s, LEAST_LIMIT_S), self._limit_s / 2.0 ** len(self._hung))

    def _took(self, arguments: tuple[Any, ...], seconds: float) -> None:
        """Count the time of a slow call about one GPU, less what is forgiven for the time since the last one."""
        if arguments and seconds >= SLOW_CALL_S:
            subject, now = id(arguments[0]), time.monotonic()
            spent, at = self._slow.get(subject, (0.0, now))
            self._slow[subject] = max(0.0, spent - SLOW_SHARE * (now - at)) + seconds, now

    def is_lost(self, handle: Any) -> bool:
        """Whether any call about this GPU was refused with NVML_ERROR_GPU_IS_LOST: it is off the bus, or needs a reset.
        In either case some calls may still answer, such as those about its identity."""
        return id(handle) in self._lost or self.needs_reset(handle)

    def needs_reset(self, handle: Any) -> bool:
        """Whether any call about this GPU was refused with NVML_ERROR_RESET_REQUIRED: no process can use it before
        that."""
        return id(handle) in self._need_reset

    def _given_up(self, arguments: tuple[Any, ...]) -> str:
        hung = next((why for subject, why in self._hung if subject == arguments[:1]), "")
        spent = self._slow.get(id(arguments[0]), (0.0, 0.0))[0] if arguments else 0.0
        if spent > SLOW_MAX_S and not hung:
            return f"it is slow to answer ({spent:.0f} s in slow calls)"
        return hung

    def field(self, handle: Any, field: str | int, scope: int | None = None) -> Answer:
        """One NVML field value, by the binding's name of the field or by its id, in the type that the driver reports.

        ``scope``: the number of the link.
        """
        identifier = self.constant(field) if isinstance(field, str) else field
        wanted = identifier if scope is None else (identifier, scope)
        answer = self.query("nvmlDeviceGetFieldValues", handle, [wanted]).map(operator.itemgetter(0))
        if answer.value is not None and answer.value.nvmlReturn != 0:
            refused = self.refusal(answer.value.nvmlReturn, handle)
            if refused.code == self.constant("NVML_ERROR_INVALID_ARGUMENT"):
                # An id that the driver is too old to know (NVIDIA DCGM, DcgmTopology.cpp: "Is the driver >= r460?").
                return dataclasses.replace(refused, note=NOT_SUPPORTED)
            return refused
        return answer.map(_field_value).map(whole)

    def refusal(self, code: int, *subject: Any) -> Answer:
        """An NVML error as an answer. ``subject``: the handle of the GPU that the call was about, if of one."""
        if code == self.constant("NVML_ERROR_GPU_IS_LOST"):
            self._lost.update(map(id, subject))
        if code == self.constant("NVML_ERROR_RESET_REQUIRED"):
            self._need_reset.update(map(id, subject))
        unsupported = code in (
            self.constant("NVML_ERROR_NOT_SUPPORTED"),
            self.constant("NVML_ERROR_FUNCTION_NOT_FOUND"),
            self.constant("NVML_ERROR_DEPRECATED"),  # as of application clocks, from driver 580 on
        )
        error = self._binding.NVMLError(code)
        return Answer(note=NOT_SUPPORTED if unsupported else f"NVML: {error} (error {code})", code=code)

    def constant(self, name: str) -> Any:
        """A constant or structure of the binding, which the node side brings along: it has all that is used here."""
        return getattr(self._binding, name)


_FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _field_value(field: Any) -> Any:
    """Raises IndexError for a type that the binding does not know."""
    return getattr(field.value, _FIELD_MEMBERS[field.valueType])
