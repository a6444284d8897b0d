"""Records that many tests begin with: a process makes them once, and each test begins with a copy."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Hashable
from pathlib import Path

from sqlalchemy import make_url

from muster import store
from muster.admission.entry import move
from muster.model.states import State
from muster.settings import settings
from tests.muster import fleet
from tests.support.servers import postgresql

_made: dict[tuple[Hashable, ...], Path] = {}


def records(make: Callable[..., object], *given: Hashable) -> None:
    """Fill this test's empty records and its home as ``make(*given)`` does.

    Dozens of statements make a node that is qualified. ``make`` depends on nothing but ``given``.
    """
    assert not store.nodes.find(), "these records would be lost"
    home, url = settings().home, make_url(settings().records_url)
    server = url.query.get("host")  # SQLite has none
    home.mkdir(parents=True, exist_ok=True)  # with PostgreSQL there is none before its first file
    key = (server, make.__module__, make.__qualname__, *given)
    if key in _made:
        store.engine.dispose()
        shutil.copytree(_made[key] / "home", home, dirs_exist_ok=True)
        if server:
            postgresql.copy(url, _made[key].name, url.database)
        return
    make(*given)
    store.engine.dispose()
    folder = Path(tempfile.mkdtemp(prefix="muster_records_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(home, folder / "home")
    if server:
        postgresql.copy(url, url.database, folder.name)
    _made[key] = folder


def qualified(*names: str) -> None:
    """Nodes that are enrolled and have passed a whole test, one after the other."""
    records(_qualified, *names)


def in_service() -> None:
    """The node of most tests is in production, by Ada."""
    records(_in_service)


def _qualified(*names: str) -> None:
    if len(names) > 1:
        qualified(*names[:-1])  # other tests begin with fewer
    store.nodes.add(fleet.new_node(names[-1]))
    fleet.qualify(names[-1])


def _in_service() -> None:
    _qualified("gpu-0001")
    move("gpu-0001", State.PRODUCTION, "Ada", "needed now")
