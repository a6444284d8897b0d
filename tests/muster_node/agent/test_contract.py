"""The node refuses what the controller would refuse: else one probe's strange name costs the whole result."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from muster_criteria import measured
from muster_node import contract
from muster_node.agent import registry
from muster_node.agent.child import Reporter
from muster_node.agent.probe_run import Listener
from muster_node.agent.process import BadLine
from muster_node.probe import Metric, Probe

OWN = """
from muster_node.probe import Metric, Probe


class Own(Probe):
    name, stage, doc = {name!r}, "intake", "a user's own"
    metrics = {{{metric!r}: Metric({unit!r}, "a figure")}}
"""


class Own(Probe):
    name, stage, doc = "own", "intake", "a user's own"
    metrics = {"figure": Metric("s", "a figure")}  # noqa: RUF012


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        (measured.Name, contract.NAME),
        (measured.DeviceName, contract.DEVICE),
        (measured.Unit, contract.UNIT),
        (measured.Label, contract.LABEL),
    ],
)
def test_both_sides_take_the_same(kind: Any, pattern: re.Pattern[str]) -> None:
    assert TypeAdapter(kind).json_schema()["pattern"] == f"^{pattern.pattern}$"


def test_both_sides_take_as_many_labels_and_as_large_numbers() -> None:
    assert TypeAdapter(measured.Labels).json_schema()["maxProperties"] == contract.LABELS_MAX
    assert TypeAdapter(measured.Figure).json_schema()["maximum"] == contract.NUMBER_MAX


@pytest.mark.parametrize(
    "strange",
    [{"device": "gpu12345"}, {"device": "acceleratorextile0"}, {"labels": {"a b": "c"}}, {"labels": {"a": "c;d"}}],
)
def test_a_measurement_that_the_controller_would_refuse_ends_its_probe_alone(strange: dict[str, Any]) -> None:
    listener = Listener(Own, lambda sentence: None)
    sent = {"kind": "measurement", "metric": "figure", "device": "gpu1234", "value": 1.0}
    listener.take(json.dumps(sent).encode())
    with pytest.raises(BadLine):
        listener.take(json.dumps({**sent, **strange}).encode())


@given(st.text(), st.text())
@example("disk:cciss!c0d0", "MT4129 ü;")
@example("disk:", "")
@example("host_fs:/a b", "")
def test_no_name_that_a_kernel_or_tool_gives_ends_a_probe(name: str, label: str) -> None:
    listener = Listener(Own, lambda sentence: None)

    class Line(Reporter):
        def send(self, kind: str, **fields: Any) -> None:
            listener.take(json.dumps({"kind": kind, **fields}).encode())

    Line(-1).emit("figure", name, value=1.0, labels={"board": label})
    (row,) = listener.measurements
    known = {"disk:cciss!c0d0": "disk:cciss_c0d0", "disk:": "disk:_", "host_fs:/a b": "device:host_fs:/a_b"}
    assert row.device == known.get(name, row.device)


@pytest.mark.parametrize(
    "strange", [{"name": "my probe"}, {"metric": "round-trip time"}, {"unit": "µs"}, {"unit": ""}], ids=str
)
def test_a_probe_of_a_name_or_unit_that_the_controller_would_refuse_is_broken(
    strange: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path.name
    (folder := tmp_path / package).mkdir()
    (folder / "__init__.py").touch()
    declared = {"name": "fine", "metric": "figure", "unit": "s"}
    (folder / "fine.py").write_text(OWN.format(**declared))
    (folder / "odd.py").write_text(OWN.format(**{**declared, "name": "odd", **strange}))
    monkeypatch.syspath_prepend(tmp_path)
    found = registry.discover([package])
    assert set(found.probes) == {"fine"}
    assert set(found.broken) == {f"{package}.odd"}
