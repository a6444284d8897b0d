"""What a node answers to a repair and to evidence costs that answer alone, however it is nested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from muster.model.nodes import Node
from muster.remote import evidence, repairing
from muster.remote.connection.ssh import Completed
from muster_criteria.repair.evidence import load
from muster_criteria.sku_files.skus import SHIPPED
from tests.muster import fleet

ANSWERS = (b"[" * 60_000, b'{"why":' * 9_000, b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"busy": 0, "why": [1]}')
NODE: Any = fleet.new_node()


@pytest.fixture(params=ANSWERS, ids=lambda answer: answer[:8].decode("ascii", "replace"))
def answering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node side that writes this to both of its outputs: the connection is a stand-in, what is read is as it came."""

    class Answering:
        def __init__(self, node: Node, *_: object) -> None: ...

        def run(self, args: Sequence[str], limit_s: float, max_bytes: int) -> Completed:
            return Completed(0, request.param[:max_bytes], request.param)

        def close(self) -> None: ...

    monkeypatch.setattr(repairing, "NodeSide", Answering)
    monkeypatch.setattr(evidence, "NodeSide", Answering)


@pytest.mark.usefixtures("answering")
def test_an_answer_that_does_not_say_that_the_node_is_free_is_in_use() -> None:
    assert repairing.usage(NODE, NotImplemented, NotImplemented)


@pytest.mark.usefixtures("answering")
def test_each_piece_of_evidence_is_there_or_says_why_not() -> None:
    profiles = load([SHIPPED])[:2]
    pieces = list(evidence.of_node(NODE, profiles, NotImplemented, NotImplemented))
    assert len(pieces) >= sum(step.if_missing == "" for profile in profiles for step in profile.steps)
    assert all(piece.why for piece in pieces)


@pytest.mark.parametrize(
    "answering", [b'{"busy": true, "sentence": "a\\n[INFO] b", "why": "a\\n[INFO] b"}'], indirect=True
)
def test_what_it_says_begins_no_line_of_a_log(answering: None) -> None:
    said = [repairing.usage(NODE, NotImplemented, NotImplemented)]
    said += [piece.why for piece in evidence.of_node(NODE, load([SHIPPED])[:1], NotImplemented, NotImplemented)]
    assert all(each and each.isprintable() for each in said)
