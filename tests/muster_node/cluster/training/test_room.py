"""What a node measures in a block fits into its result, whatever the level and however many devices it has."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from muster_criteria.sku_files.skus import SHIPPED, load_sku
from muster_criteria.stages import LEVELS
from muster_node.agent.probe_run import MEASUREMENTS_MAX, TEXT_MAX
from muster_node.agent.result import encode
from muster_node.cluster.training import acceptance
from muster_node.cluster.training.acceptance import SHAPES, Acceptance
from muster_node.cluster.training.bitwise import Trial
from muster_node.contract import Measurement, Result
from muster_node.hardware.seam import Device
from tests.muster_criteria import cluster_results

TRAINING = "cluster_training"
TEXT = "0123456789abcdef" * 2
GPU_SKUS = sorted(
    sku for path in SHIPPED.glob("*.yaml") if isinstance(load_sku(sku := path.stem).devices.get("gpu"), int)
)
Row = tuple[str, str, dict[str, Any]]


class Over(Exception):
    """The bitwise test has ended, and what follows is no part of this."""


class Group:
    """A rank of a node whose devices are all its own, in a block whose largest node has ``most`` devices."""

    local, per_node, hardware = 0, 1, None

    def __init__(self, device: Device, most: int) -> None:
        self.device, self.most = device, most
        self.rows: list[Row] = []

    def agree(self, what: str) -> None:
        """There is no other."""

    def mark(self, activity: str) -> None:
        """Its progress is not followed."""

    def gather(self, payload: Any = None) -> list[Any]:
        return [payload, self.most]

    def begin(self, phase: str) -> None:
        if phase == "rendezvous":
            raise Over

    def emit(self, metric: str, device: str, **fields: Any) -> None:
        self.rows.append((metric, device, fields))


def bitwise(
    monkeypatch: pytest.MonkeyPatch, params: Mapping[str, Any], kind: str, devices: int, most: int = 0,
    differing: Mapping[int, list[tuple[str, str]]] | None = None,
) -> list[Row]:  # fmt: skip
    """What the bitwise test of so many devices reports, without its computing. ``differing``: by step."""
    shape = dataclasses.replace(SHAPES[kind], layers=params["layers"] or SHAPES[kind].layers)
    layers = ("embed", *map(str, range(shape.layers)), "head")
    parts = list(itertools.product(("activations", "gradients"), layers))

    def trial(torch: Any, model: Any, seed: int, step: int, group: Any) -> Trial:
        return Trial(step, {part: f"{step} {part}" for part in parts}, list((differing or {}).get(step, ())))

    fake = SimpleNamespace(set_num_threads=lambda count: None, use_deterministic_algorithms=lambda on, **_: None)
    monkeypatch.setattr(acceptance, "require_torch", lambda: fake)
    monkeypatch.setattr(acceptance, "replica", lambda *given: None)
    monkeypatch.setattr(acceptance, "same_batch", trial)
    monkeypatch.setattr(
        Acceptance, "_keys", lambda self, model: dict.fromkeys(("digest_key", "pace_key"), "x" * TEXT_MAX)
    )
    monkeypatch.setattr(Acceptance, "_give_back", lambda self: None)
    every = [Device(f"{kind}{slot}", kind, slot) for slot in range(devices)]
    group = Group(every[0], most or devices)
    with pytest.raises(Over):
        Acceptance({"same_steps": 4, **params}, 1, every)(group)  # type: ignore[arg-type]
    return group.rows


def sent(rows: list[Row], members: int) -> Result:
    """The result that holds these rows and those of a healthy member of so large a block."""
    raw = next(iter(cluster_results.block(members).values())).raw()
    rest = [Measurement(**row) for row in raw["measurements"] if row["metric"] != "step_digest"]
    # After the load comes the first step once more.
    again = [row for row in rows if row[2].get("labels", {}).get("step") == "0" or row[0] == "self_mismatches"]
    own = []
    for metric, device, fields in (*rows, *again):
        text = {"text": TEXT} if metric == "step_digest" else {}
        own.append(Measurement(TRAINING, metric, device, "text", **{**fields, **text}))
    assert len(own) < MEASUREMENTS_MAX
    known = {field.name for field in dataclasses.fields(Result)}
    return dataclasses.replace(
        Result(**{name: value for name, value in raw.items() if name in known}), measurements=[*rest, *own]
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sku", [*GPU_SKUS, "cpu-generic"])
def test_all_that_a_member_measures_fits(sku: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of CPUs runs the batch on all its cores, of which the largest servers have 256 and more."""
    loaded = load_sku(sku)
    params = {"layers": None, **loaded.block.probes[TRAINING].params_at(level)}
    kind = "cpu" if sku == "cpu-generic" else "gpu"
    for devices in (256, 1024) if kind == "cpu" else (loaded.devices["gpu"],):
        rows = bitwise(monkeypatch, params, kind, int(devices))
        assert {device for metric, device, _ in rows if metric == "step_digest"} == {
            f"{kind}{slot}" for slot in range(int(devices))
        }
        assert b'"notes": []' in encode(sent(rows, 256))


def test_of_eight_gpus_each_step_is_reported_and_of_the_first_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = bitwise(monkeypatch, {"layers": None, "same_steps": 500}, "gpu", 8)
    labels = [fields["labels"] for metric, device, fields in rows if (metric, device) == ("step_digest", "gpu7")]
    assert {each["step"] for each in labels} == {str(step) for step in range(500)}
    assert {each["step"] for each in labels if "kind" in each} == {"0"}
    assert len(labels) == 499 + 12


def test_nodes_with_different_numbers_of_cores_report_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else none of their digests could be compared."""

    def of_first(devices: int) -> list[Any]:
        rows = bitwise(monkeypatch, {"layers": None, "same_steps": 500}, "cpu", devices, most=256)
        return [fields for metric, device, fields in rows if (metric, device) == ("step_digest", "cpu0")]

    assert of_first(8) == of_first(256)


def test_a_step_that_differs_in_its_second_run_is_named_and_changes_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"layers": None, "same_steps": 500}
    good = bitwise(monkeypatch, given, "cpu", 256)
    bad = bitwise(monkeypatch, given, "cpu", 256, differing={77: [("gradients", "1")]})
    assert [row for row in good if row[0] == "step_digest"] == [row for row in bad if row[0] == "step_digest"]
    sent, own, *_ = (fields for metric, _, fields in bad if metric == "self_mismatches")
    assert (sent["value"], sent["so_far"]) == (1, True)
    assert (own["value"], own["samples"]) == (1, 500 * 8)
    assert "step 77" in own["note"]
