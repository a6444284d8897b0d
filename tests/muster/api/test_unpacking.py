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
