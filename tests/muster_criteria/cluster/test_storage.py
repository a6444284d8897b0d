"""The path that nodes share: who is named for it, and what its figures are compared with. It fails no node."""

from __future__ import annotations

import pytest

from muster_criteria.cluster.model import OTHERS_MIN, TRAINING, Earlier
from muster_criteria.model import FaultClass, Severity, Verdict
from tests.muster_criteria.cluster.test_training import real, rules
from tests.muster_criteria.cluster_results import Sent, block, row


def at_path(count: int, rates: dict[str, float], direction: str = "write") -> dict[str, Sent]:
    """A block of which each node gets 2 GB/s, all at once, but for those named."""
    sent = block(count)
    for name, each in sent.items():
        for way in ("write", "read"):
            rate = rates.get(name, 2.0) if way == direction else 2.0
            labels = {"direction": way, "nodes": "all"}
            each.storage.append({**row(TRAINING, "shared_rate", value=rate, labels=labels), "unit": "GB/s"})
    return sent


def saving(seconds: float) -> dict[str, Sent]:
    sent = block(2)
    for each in sent.values():
        for stat, value in (("p50", 1.0), ("p95", seconds)):
            each.storage.append({**row(TRAINING, "checkpoint_save", value=value, labels={"stat": stat}), "unit": "s"})
    return sent


def late(sent: dict[str, Sent], **answers: str) -> dict[str, Sent]:
    """A save that does not end on any node; ``answers``: whether a small file could be written on each."""
    for name, own in answers.items():
        sent[name].storage.append(row(TRAINING, "shared_path", value=0.0, labels={"answers": own}, note="no answer"))
    return sent


@pytest.mark.parametrize("direction", ["write", "read"])
def test_a_node_that_gets_little_of_the_path_is_named(direction: str) -> None:
    judgement = real(at_path(4, {"n2": 0.9}, direction))
    assert rules(judgement) == {"n0": [], "n1": [], "n2": ["slow_shared_path"], "n3": []}
    (finding,) = judgement.members["n2"].findings
    assert (finding.severity, finding.fault_class) == (Severity.WARNING, FaultClass.FACILITY)
    assert dict(finding.labels) == {"direction": direction}


def test_nodes_that_share_a_slow_path_alike_are_not_charged() -> None:
    assert rules(real(at_path(4, dict.fromkeys(["n0", "n1", "n2", "n3"], 0.01)))) == {f"n{at}": [] for at in range(4)}
    assert rules(real(at_path(4, {"n2": 1.1}))) == {f"n{at}": [] for at in range(4)}


def test_fewer_than_three_others_compare_no_node() -> None:
    assert rules(real(at_path(OTHERS_MIN, {"n2": 0.1}))) == {"n0": [], "n1": [], "n2": []}


@pytest.mark.parametrize(
    ("seconds", "blocks", "warns"), [(1.4, OTHERS_MIN, False), (1.6, OTHERS_MIN, True), (9.0, OTHERS_MIN - 1, False)]
)
def test_saves_are_compared_with_those_of_earlier_blocks(seconds: float, blocks: int, warns: bool) -> None:
    """The p95 counts: the median of these saves is as before."""
    judgement = real(saving(seconds), Earlier(1.0, 10, save_s=1.0, saves=blocks))
    assert rules(judgement) == dict.fromkeys(["n0", "n1"], ["slow_save"] if warns else [])
    assert judgement.failed == {}


def test_saves_without_earlier_ones_are_only_reported() -> None:
    assert rules(real(saving(60.0), Earlier(1.0, 10))) == {"n0": [], "n1": []}


def test_a_path_that_hangs_on_one_node_is_that_nodes() -> None:
    sent = late(block(3), n0="yes", n1="no", n2="yes")
    assert rules(real(sent)) == {"n0": [], "n1": ["shared_path"], "n2": []}


def test_a_path_that_hangs_though_small_files_can_be_written_is_everybodys() -> None:
    sent = late(block(3), n0="yes", n1="yes", n2="yes")
    assert rules(real(sent)) == {name: ["shared_path"] for name in sent}


def test_a_path_that_is_full_on_one_node_is_named_while_another_hangs() -> None:
    sent = late(block(3), n1="no", n2="yes")
    sent["n0"].shared_path = 0.0
    assert rules(real(sent)) == {"n0": ["shared_path"], "n1": ["shared_path"], "n2": []}


def resumed(sent: dict[str, Sent], name: str, device: str = "node") -> dict[str, Sent]:
    """A node whose training differs after a load: by the loss that a device computes, or in its weights or moments."""
    sent[name].storage.append(row(TRAINING, "resume_equal", device, value=0.0, note="it differs"))
    return sent


def test_a_resume_that_nothing_explains_is_the_paths() -> None:
    judgement = real(resumed(block(4), "n1"))
    assert rules(judgement) == {"n0": [], "n1": ["resume_equal"], "n2": [], "n3": []}
    (finding,) = judgement.members["n1"].findings
    assert (finding.fault_class, finding.device, finding.severity) == (FaultClass.FACILITY, "node", Severity.WARNING)


def test_a_loss_that_differs_with_equal_weights_is_its_devices() -> None:
    (finding,) = real(resumed(block(4), "n1", "gpu1")).members["n1"].findings
    assert (finding.fault_class, finding.device, finding.severity) == (FaultClass.GPU, "gpu1", Severity.WARNING)


@pytest.mark.parametrize("erratic", [True, False])
@pytest.mark.parametrize(("name", "device"), [("n1", "gpu0"), ("n1", "node"), ("n2", "node")])
def test_a_resume_that_a_corrupting_gpu_explains_is_no_finding_of_the_path(
    name: str, device: str, erratic: bool
) -> None:
    sent = resumed(block(4), name, device)
    sent["n1"].flip("gpu0", erratic=erratic)
    judgement = real(sent)
    assert {each.fault_class for found in judgement.members.values() for each in found.findings} == {FaultClass.GPU}
    assert any(name in note and "n1" in note for note in judgement.notes)


def test_a_corrupting_gpu_does_not_explain_the_loss_of_another_node() -> None:
    sent = resumed(block(4), "n2", "gpu1")
    sent["n1"].flip("gpu0")
    assert rules(real(sent))["n2"] == ["resume_equal"]


def test_ranks_that_end_with_different_weights_explain_a_resume_that_differs() -> None:
    sent = resumed(block(4), "n1")
    sent["n2"].weights = "other"
    judgement = real(sent)
    assert rules(judgement) == {f"n{at}": [] for at in range(4)}
    assert all(each.verdict is Verdict.INCONCLUSIVE for each in judgement.members.values())
