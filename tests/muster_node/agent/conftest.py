"""The node that these tests run on: a work directory, and agents that are really started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.muster_node.agent.harness import Node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()
