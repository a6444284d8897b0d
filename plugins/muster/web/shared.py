"""Values computed once for all viewers: a request during the computation waits for its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """The last ``most`` values by key. A value that could not be made is not kept."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._kept: dict[Hashable, Future[T]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made by ``make`` unless it is kept. Raises what ``make`` raises."""
        with self._lock:
            future = self._kept.get(key) or Future()
            ours = key not in self._kept
            self._kept[key] = future
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        if ours:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._kept.get(key) is future:
                        del self._kept[key]
                future.set_exception(error)
        return future.result()
