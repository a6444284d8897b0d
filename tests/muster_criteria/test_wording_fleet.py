"""The wording of what the block's and the XID judge print, checked in one snapshot.

Renew it with ``make wording`` and read the difference.
"""

from __future__ import annotations

from syrupy.assertion import SnapshotAssertion

from muster_criteria.cluster.model import ClusterJudgement, MemberResult
from tests.muster_criteria.cluster_results import OPS, TRAINING, Sent, block, judge_block, members
from tests.muster_criteria.device_events.test_coded import BAD, refused_policy


def sentences(judgement: ClusterJudgement) -> list[str]:
    """Every sentence of a block's judgement, in the order of its members."""
    found = [f"{name}: {member.verdict}: {member.reason}" for name, member in judgement.members.items()]
    findings = [finding for member in judgement.members.values() for finding in member.findings]
    found += [f"{each.rule}: {each.summary} expected {each.expected}; {each.source}" for each in findings]
    return [*found, *judgement.notes]


def slow(sent: dict[str, Sent]) -> None:
    sent["n1"].compute["gpu1"] = 1.25
    for other in sent.values():
        other.wait = 0.001 if other.name == "n1" else 0.25


def test_wording_of_blocks(snapshot: SnapshotAssertion) -> None:
    blocks = {}
    healthy = block(3)
    blocks["healthy"] = judge_block(members(healthy))
    own = block(3)
    own["n1"].flip("gpu1", erratic=True)
    blocks["differs from itself"] = judge_block(members(own))
    other = block(3)
    other["n1"].flip("gpu1")
    blocks["differs from the majority"] = judge_block(members(other))
    software = block(3)
    for gpu in software["n1"].gpus:
        software["n1"].flip(gpu)
    blocks["all devices of a node"] = judge_block(members(software))
    different = block(3, gpus=1)
    for each in different.values():
        each.flip()
    blocks["all different"] = judge_block(members(different))
    tie = block(2, gpus=1)
    tie["n0"].flip()
    tie["n1"].weights = "other"
    blocks["a pair that differs"] = judge_block(members(tie))
    weights = block(3)
    weights["n2"].weights = "other"
    weights["n0"].loss = None
    blocks["weights"] = judge_block(members(weights))
    lost = block(3)
    for each in lost.values():
        each.lose("n2")
    gone = MemberResult("n2", None, "its agent left no result")
    blocks["lost"] = judge_block([lost["n0"].member(), lost["n1"].member(), gone])
    pair = block(2)
    pair["n0"].lose("n1")
    pair["n1"].lose("n0")
    blocks["a pair that lost each other"] = judge_block(members(pair))
    skipped = block(3)
    skipped["n1"].status[TRAINING] = "skipped"
    blocks["skipped"] = judge_block(members(skipped))
    for name, size in (("slow among four", 4), ("slow in a pair", 2)):
        sent = block(size)
        slow(sent)
        blocks[name] = judge_block(members(sent))
    late = block(3)
    late["n2"].lags = dict.fromkeys(OPS, 0.4)
    blocks["late"] = judge_block(members(late))
    sender = block(4)
    for name in ("n0", "n1", "n3"):
        sender[name].mismatches["all_to_all", "n2"] = 7.0
    blocks["a sender"] = judge_block(members(sender))
    path = block(4)
    path["n3"].mismatches["send_recv", "n2"] = 1.0
    blocks["a path"] = judge_block(members(path))
    sums = block(3)
    sums["n1"].mismatches["all_reduce", ""] = 2.0
    blocks["a wrong sum"] = judge_block(members(sums))

    assert {name: sentences(judgement) for name, judgement in blocks.items()} == snapshot


def test_wording_of_policies(snapshot: SnapshotAssertion) -> None:
    assert {name: refused_policy(spoil) for name, spoil in BAD} == snapshot
