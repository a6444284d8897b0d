"""The memory that bodies of reports take: each may unpack to 26 times its size, before its reports are counted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from muster.api import reports
from tests.muster.api.conftest import XID, post


def test_bodies_are_unpacked_one_at_a_time(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    together, met = threading.Barrier(2), list[bool]()

    def read(*_: Any) -> Iterator[Any]:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.5)
            met.append(True)
        return iter([])

    monkeypatch.setattr(reports.report_forms, "read", read)
    senders = [threading.Thread(target=post, args=(client, XID)) for _ in range(3)]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    assert not met


def test_a_body_that_waits_keeps_no_thread_from_other_routes(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server's threads serve all routes that are not asynchronous."""
    shared = list[Any]()
    real = reports.run_in_threadpool

    async def pooled(act: Any, *given: Any) -> Any:
        shared.append(act)
        return await real(act, *given)

    monkeypatch.setattr(reports, "run_in_threadpool", pooled)
    free, begun = threading.Event(), threading.Event()
    reports._unpacking.submit(lambda: (begun.set(), free.wait()))
    begun.wait()
    sender = threading.Thread(target=post, args=(client, XID))
    sender.start()
    sender.join(1.0)
    waiting = sender.is_alive() and not shared
    free.set()
    sender.join()
    assert waiting
    assert len(shared) == 1
