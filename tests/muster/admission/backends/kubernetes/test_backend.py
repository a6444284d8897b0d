"""The Kubernetes backend: whose taint, cordon and label is what, and an API server that is unkind."""

from __future__ import annotations

import contextlib
import copy
import datetime
from pathlib import Path

import pytest
import yaml

from muster import store
from muster.admission import service
from muster.admission.backend import AdmissionBackend, Mark, Seen
from muster.admission.backends.kubernetes.backend import ANNOTATION, CONDITION, LABEL, REQUEST, TAINT
from muster.admission.clusters import backend_of
from muster.admission.entry import move
from muster.errors import LeftAlone, SchedulerDown
from muster.model.states import State
from muster.store.database import access
from tests.muster import fleet
from tests.support.servers.kubernetes import Cluster
from tests.support.servers.kubernetes_server import GPU

MARK = Mark("PASS", datetime.date(2026, 11, 23), "c-1")


@pytest.fixture
def backend(kubernetes: Cluster) -> AdmissionBackend:
    return backend_of("kube")


def seen(backend: AdmissionBackend) -> Seen:
    return backend.look(["n0"])["n0"]


def condition(cluster: Cluster) -> dict[str, str]:
    conditions = cluster.nodes["n0"]["status"]["conditions"]
    return next((each for each in conditions if each["type"] == CONDITION), {})


def keys(cluster: Cluster) -> set[str]:
    return {each["key"] for each in cluster.nodes["n0"]["spec"].get("taints", [])}


def test_what_a_withdrawal_and_an_admission_leave(backend: AdmissionBackend, kubernetes: Cluster) -> None:
    before = copy.deepcopy(kubernetes.nodes["n0"])
    backend.withdraw("n0", "failed burn_in")
    node = kubernetes.nodes["n0"]
    assert keys(kubernetes) == {"nvidia.com/gpu", TAINT}
    assert not node["spec"].get("unschedulable"), "each cordon is somebody else's"
    for reason in ("failed burn_in", "in repair"):
        backend.withdraw("n0", reason)
        assert (condition(kubernetes)["status"], condition(kubernetes)["message"]) == ("False", reason)
        assert kubernetes.nodes["n0"]["metadata"]["annotations"][ANNOTATION] == f"withdrawn: {reason}"
    backend.admit("n0", MARK)
    node = kubernetes.nodes["n0"]
    assert node["spec"] == before["spec"]
    assert node["metadata"]["labels"] == before["metadata"]["labels"] | {LABEL: "true"}
    assert MARK.text in (condition(kubernetes)["message"], node["metadata"]["annotations"][ANNOTATION])
    assert condition(kubernetes)["status"] == "True"
    assert [each for each in node["status"]["conditions"] if each["type"] == "Ready"] == before["status"]["conditions"]
    assert seen(backend).marked
    count = len([each for each in kubernetes.requests if each[0] == "PATCH"])
    backend.admit("n0", MARK)
    assert len([each for each in kubernetes.requests if each[0] == "PATCH"]) == count
    assert kubernetes.used == kubernetes.granted - {("list", "nodes")}, "a right that is not needed is not granted"


@pytest.mark.parametrize("taint", ["", "acme.example/maintenance"])
def test_what_another_closed_stays_closed_and_is_no_longer_qualified(
    backend: AdmissionBackend, kubernetes: Cluster, taint: str
) -> None:
    backend.admit("n0", MARK)
    before = copy.deepcopy(kubernetes.nodes["n0"]["spec"])
    taints = [*before["taints"], {"key": taint, "effect": "NoExecute"}]
    kubernetes.write("n0", "kubectl", {"spec": {"taints": taints} if taint else {"unschedulable": True}})
    closed = keys(kubernetes)
    assert (seen(backend).open, seen(backend).ours) == (False, False)
    backend.withdraw("n0", "failed burn_in")
    assert condition(kubernetes)["status"] == "False"
    assert LABEL not in kubernetes.nodes["n0"]["metadata"]["labels"]
    with pytest.raises(LeftAlone):
        backend.admit("n0", MARK)
    assert keys(kubernetes) == closed | {TAINT}
    assert condition(kubernetes)["status"] == "False"
    kept = [each for each in kubernetes.nodes["n0"]["spec"]["taints"] if each["key"] != taint]
    kubernetes.write("n0", "kubectl", {"spec": {"taints": kept, "unschedulable": None}})
    assert not seen(backend).open, "ours closes it as well, from the moment that they open it"
    backend.admit("n0", MARK)
    assert kubernetes.nodes["n0"]["spec"] == before


@pytest.mark.parametrize("lacking", ["nodes", "nodes/status"])
def test_a_right_that_is_missing_leaves_the_other_half_of_a_withdrawal(
    backend: AdmissionBackend, kubernetes: Cluster, lacking: str
) -> None:
    """A role of another version, or a policy that denies one of the two, leaves no bad node open."""
    backend.admit("n0", MARK)
    kubernetes.granted -= {("patch", lacking)}
    with pytest.raises(SchedulerDown, match="403"):
        backend.withdraw("n0", "corrupts data")
    assert (TAINT in keys(kubernetes)) is (lacking == "nodes/status")
    assert (condition(kubernetes)["status"] == "False") is (lacking == "nodes")


def test_a_cordon_of_what_is_closed_already_is_a_persons_and_stays(
    backend: AdmissionBackend, kubernetes: Cluster
) -> None:
    """kubectl sends nothing for a node that is cordoned already."""
    backend.withdraw("n0", "failed burn_in")
    kubernetes.cordon("n0")
    with pytest.raises(LeftAlone):
        backend.admit("n0", MARK)
    assert (seen(backend).ours, bool(seen(backend).foreign)) == (True, True)
    assert kubernetes.nodes["n0"]["spec"]["unschedulable"]


def enrolled() -> str:
    store.nodes.add(node := fleet.new_node())
    store.schedulers.assign(node.name, "kube", "n0", "Ada", "rack 1")
    return node.name


def test_a_taint_of_ours_that_is_lost_while_a_person_keeps_the_node_closed_is_set_again(
    kubernetes: Cluster, fleet_db: str
) -> None:
    node = enrolled()
    assert service.carry_out(node) == ""
    kubernetes.create("n0")
    kubernetes.cordon("n0")
    service.reconcile()
    kubernetes.write("n0", "kubectl-cordon", {"spec": {"unschedulable": None}})
    assert not service.look([node])[node].open


def test_a_cordon_between_our_look_and_our_change_stays(backend: AdmissionBackend, kubernetes: Cluster) -> None:
    backend.withdraw("n0", "failed burn_in")
    kubernetes.mood = ["", "cordoned meanwhile"]
    with pytest.raises(LeftAlone):
        backend.admit("n0", MARK)
    assert kubernetes.nodes["n0"]["spec"]["unschedulable"]
    assert condition(kubernetes)["status"] == "False"


@pytest.mark.parametrize("offered", ["7", "0", None])
def test_a_node_whose_device_plugin_withholds_gpus_is_not_opened(
    backend: AdmissionBackend, kubernetes: Cluster, offered: str | None
) -> None:
    """No job that wants them all would start on it, whatever its tests found (NVIDIA/k8s-device-plugin#111, #189)."""
    backend.withdraw("n0", "XID 79")
    whole = {"cpu": "8", GPU: "8"}
    status = kubernetes.nodes["n0"]["status"]
    status["capacity"], status["allocatable"] = whole, {"cpu": "7500m"} | ({GPU: offered} if offered else {})
    with pytest.raises(LeftAlone):
        backend.admit("n0", MARK)
    assert (TAINT in keys(kubernetes), condition(kubernetes)["status"]) == (True, "False")
    # Another device that is withheld is no GPU, as KubeVirt's where the node lacks /dev/kvm.
    status["capacity"] = whole | {"devices.kubevirt.io/kvm": "1k"}
    status["allocatable"] = {"cpu": "7500m", GPU: "8", "devices.kubevirt.io/kvm": "0"}
    backend.admit("n0", MARK)
    assert seen(backend).open


@pytest.mark.parametrize(("tested", "why"), [("before", "ECC?"), ("after", "ECC?"), ("after", "")])
def test_a_requested_test_opens_the_node_if_it_began_after_the_cordon(
    backend: AdmissionBackend, kubernetes: Cluster, tested: str, why: str
) -> None:
    kubernetes.cordon("n0")
    kubernetes.write("n0", "kubectl-annotate", {"metadata": {"annotations": {REQUEST: why}}})
    since = seen(backend).foreign_since
    assert since
    assert seen(backend).idle.idle
    mark = Mark("PASS", MARK.date, "c-1", since + datetime.timedelta(seconds=5 if tested == "after" else -5))
    if tested == "after":
        backend.admit("n0", mark)
    else:
        with pytest.raises(LeftAlone):
            backend.admit("n0", mark)
    assert seen(backend).open is (tested == "after")
    assert (REQUEST in kubernetes.nodes["n0"]["metadata"]["annotations"]) is (tested == "before")


@pytest.mark.parametrize(
    ("annotated", "other", "counts"),
    [("2025-03-01", ".", False), ("2025-11-20", ".", True), ("", ".", False), ("2025-11-20", "f:acme/ticket", False)],
)
def test_a_request_that_is_older_than_the_cordon_was_forgotten_and_the_cordon_stays(
    backend: AdmissionBackend, kubernetes: Cluster, annotated: str, other: str, counts: bool
) -> None:
    """Ada annotated the node, and opened it by hand; months later Bob drains it to change a DIMM."""
    kubernetes.write("n0", "kubectl-annotate", {"metadata": {"annotations": {REQUEST: "ECC?"}}})
    kubernetes.write("n0", "kubectl-drain", {"spec": {"unschedulable": True}})
    times = {"kubectl-annotate": annotated, "kubectl-drain": "2025-11-20"}
    for entry in kubernetes.nodes["n0"]["metadata"]["managedFields"]:
        entry["time"] = f"{day}T09:00:00Z" if (day := times[entry["manager"]]) else None
        entry["fieldsV1"].get("f:metadata", {}).get("f:annotations", {})[other] = {}  # a time for all that one set
    assert (seen(backend).verify, seen(backend).idle.idle) == (counts, counts)
    mark = Mark("PASS", MARK.date, "c-1", datetime.datetime(2025, 11, 21, tzinfo=datetime.UTC))
    with contextlib.nullcontext() if counts else pytest.raises(LeftAlone):
        backend.admit("n0", mark)
    assert kubernetes.nodes["n0"]["spec"].get("unschedulable", False) is not counts


@pytest.mark.parametrize("what", ["not ready", "unreachable", "deleted"])
def test_a_node_in_trouble_is_not_opened_and_closed_for_when_it_returns(
    backend: AdmissionBackend, kubernetes: Cluster, what: str
) -> None:
    node = kubernetes.nodes["n0"]
    if what == "not ready":
        node["status"]["conditions"][0]["status"] = "Unknown"
    elif what == "unreachable":
        node["spec"]["taints"].append({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"})
    else:
        node["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:00Z"
    with pytest.raises(LeftAlone):
        backend.admit("n0", MARK)
    assert seen(backend).allocation
    assert not [each for each in kubernetes.requests if each[0] == "PATCH"]
    if what == "deleted":
        spec = copy.deepcopy(node["spec"])
        with pytest.raises(LeftAlone):
            backend.withdraw("n0", "failed burn_in")
        assert kubernetes.nodes["n0"]["spec"] == spec
    else:
        backend.withdraw("n0", "failed burn_in")
        assert seen(backend).apart
        assert not seen(backend).allocation
        assert not seen(backend).idle.idle
        node["status"]["conditions"][0]["status"] = "True"
        node["spec"]["taints"] = [each for each in node["spec"]["taints"] if "unreachable" not in each["key"]]
        assert seen(backend).ours
    assert condition(kubernetes)["status"] == "False", "once it is ready again, it must not count as qualified"


@pytest.mark.parametrize(
    ("key", "effect", "is_open"),
    [
        ("karpenter.sh/disrupted", "NoSchedule", False),
        ("karpenter.sh/disruption", "NoSchedule", False),
        ("karpenter.sh/unregistered", "NoExecute", False),
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", False),
        ("startup-taint.cluster-autoscaler.kubernetes.io/gpu", "NoSchedule", False),
        ("node.cilium.io/agent-not-ready", "NoSchedule", False),  # cilium/cilium#16631: until its agent runs
        ("node.cluster.x-k8s.io/uninitialized", "NoSchedule", False),
        ("ebs.csi.aws.com/agent-not-ready", "NoExecute", False),
        ("weave.works/kured-node-reboot", "PreferNoSchedule", True),  # kubereboot/kured#250: jobs still start on it
        ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule", True),  # jobs still start on it
        ("acme.example/dedicated", "NoSchedule", True),
    ],
)
def test_a_node_that_others_remove_or_have_not_made_ready_is_closed_and_not_opened(
    backend: AdmissionBackend, kubernetes: Cluster, key: str, effect: str, is_open: bool
) -> None:
    taints = [*kubernetes.nodes["n0"]["spec"]["taints"], {"key": key, "effect": effect}]
    kubernetes.write("n0", "karpenter", {"spec": {"taints": taints}})
    assert (seen(backend).open, bool(seen(backend).apart)) == (is_open, not is_open)
    backend.withdraw("n0", "failed burn_in")
    assert seen(backend).ours
    assert bool(seen(backend).allocation) is not is_open
    if not is_open:
        with pytest.raises(LeftAlone):
            backend.admit("n0", MARK)


@pytest.mark.parametrize("mood", ["another writes first", "429"])
@pytest.mark.parametrize("at", range(5))
def test_conflicts_and_a_busy_server_are_tried_again(
    backend: AdmissionBackend, kubernetes: Cluster, mood: str, at: int
) -> None:
    kubernetes.mood = [""] * at + [mood]
    backend.withdraw("n0", "failed burn_in")
    assert seen(backend).ours
    kubernetes.mood = [""] * at + [mood]
    backend.admit("n0", MARK)
    assert seen(backend).open


@pytest.mark.parametrize(("mood", "at"), [
    *((each, at) for each in ("500", "drop", "cut", "babble", "done, and no answer") for at in (0, 1, 3)),
    ("hang", 1), ("429 for an hour", 1),
])  # fmt: skip
def test_a_server_that_fails_is_one_error_and_the_change_is_repeated(
    backend: AdmissionBackend, kubernetes: Cluster, mood: str, at: int
) -> None:
    kubernetes.mood = [""] * at + [mood]
    with pytest.raises(SchedulerDown):
        backend.withdraw("n0", "failed burn_in")
    kubernetes.mood = []
    backend.withdraw("n0", "failed burn_in")
    assert seen(backend).ours
    assert condition(kubernetes)["status"] == "False"
    backend.admit("n0", MARK)
    assert keys(kubernetes) == {"nvidia.com/gpu"}


def qualified_later(node: str, patch: pytest.MonkeyPatch) -> None:
    """It passes a test two seconds later: the API server records whole seconds, and a test counts from the next one."""
    now = access.now
    with patch.context() as later:
        later.setattr(access, "now", lambda: now() + datetime.timedelta(seconds=2))
        fleet.qualify(node, "again")


def test_a_node_that_is_created_again_gets_no_mark_of_an_earlier_test(
    kubernetes: Cluster, fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = enrolled()
    fleet.qualify(node)
    move(node, State.PRODUCTION, "Ada", "needed now")
    kubernetes.create("n0")
    for _ in range(2):
        assert len(service.reconcile()) == 1
    assert (LABEL in kubernetes.nodes["n0"]["metadata"]["labels"], condition(kubernetes)) == (False, {})
    assert service.idle([node])[node].idle, "so that it is tested"
    qualified_later(node, monkeypatch)
    assert service.reconcile() == []
    assert condition(kubernetes)["status"] == "True"


def test_a_node_that_is_admitted_while_it_is_not_ready_is_marked_once_it_is(kubernetes: Cluster, fleet_db: str) -> None:
    node = enrolled()
    kubernetes.nodes["n0"]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    fleet.qualify(node)
    ready = kubernetes.nodes["n0"]["status"]["conditions"][0]
    ready["status"] = "Unknown"
    move(node, State.PRODUCTION, "Ada", "needed now")
    assert not service.idle([node])[node].idle
    ready["status"] = "True"
    assert service.reconcile() == []
    assert condition(kubernetes)["status"] == "True"
    assert service.idle([node])[node].idle


def test_marks_that_somebody_removed_are_shown_and_not_set_again_until_a_test_passes(
    kubernetes: Cluster, fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = enrolled()
    kubernetes.nodes["n0"]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    fleet.qualify(node)
    move(node, State.PRODUCTION, "Ada", "needed now")
    del kubernetes.nodes["n0"]["metadata"]["labels"][LABEL]
    for _ in range(2):
        (difference,) = service.reconcile()
        assert node in difference
    assert LABEL not in kubernetes.nodes["n0"]["metadata"]["labels"]
    qualified_later(node, monkeypatch)
    assert service.reconcile() == []
    assert LABEL in kubernetes.nodes["n0"]["metadata"]["labels"]


def test_the_example_of_a_readiness_rule_waits_for_our_condition() -> None:
    rule = yaml.safe_load((Path(__file__).parents[5] / "docs/examples/node_readiness_rule.yaml").read_text())
    assert rule["spec"]["conditions"] == [{"type": CONDITION, "requiredStatus": "True"}]
    assert rule["spec"]["taint"]["key"] != TAINT, "a controller would remove ours"


def test_a_node_that_it_does_not_know_is_not_opened(backend: AdmissionBackend) -> None:
    with pytest.raises(SchedulerDown):
        backend.admit("n9", MARK)
