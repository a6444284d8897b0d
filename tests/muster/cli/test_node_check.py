"""What ``muster node check`` makes of a node's answers."""

from __future__ import annotations

import json

import pytest

from muster.cli.node import check as checking
from muster.model.nodes import NewNode
from muster.remote import ssh
from tests.muster import fleet


def test_a_check_goes_by_what_the_sku_runs_and_requires() -> None:
    items = [
        checking.Item(checking.OPTIONAL, "gpu", (), "there is no GPU: right for a CPU node"),
        checking.Item(checking.MISSING, "dcgmi", ("dcgm_diag",), "not installed"),
        checking.Item(checking.MISSING, "torch", ("exact_gemm", "transfers"), "cannot be imported"),
    ]
    cpu = {item.item: item.mark for item in checking.for_sku(items, "cpu-generic", "standard")}
    assert cpu == {"torch": checking.MISSING}
    gpu = {item.item: item.mark for item in checking.for_sku(items, "h100-sxm-8", "standard")}
    assert gpu == {"torch": checking.MISSING, "gpu": checking.MISSING, "dcgmi": checking.OPTIONAL}
    silent = checking.Item(checking.MISSING, "gpu", ("gpu_burn",), "GPUs of PCI vendor 0x1002 are on the bus")
    (marked,) = checking.for_sku([silent], "h100-sxm-8", "standard")
    assert (marked.mark, marked.message) == (checking.MISSING, silent.message)


def test_the_answer_to_a_check_is_cleaned() -> None:
    answer = [
        {"item": "torch", "ok": False, "needed_by": ["gemm_rate"], "message": "\x1b[31mmissing"},
        {"item": "fio", "ok": False, "needed_by": [], "message": "x" * 9000},
        {"item": "python", "ok": True, "needed_by": ["gemm_rate"], "message": "3.11"},
    ]
    items = checking.parse(json.dumps(answer).encode())
    assert items is not None
    assert [item.mark for item in items] == [checking.MISSING, checking.OPTIONAL, checking.OK]
    assert "\x1b" not in items[0].message
    assert len(items[1].message) == 500
    assert checking.parse(b"Traceback") is None
    assert checking.parse(b'[{"item": 1}]') is None


@pytest.mark.parametrize(("kind", "marks"), [("podman", [checking.MISSING]), ("python", [])])
def test_tests_in_a_container_need_a_python_on_the_host_too(
    kind: str, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_node: object, _args: object, *, on_host: bool = False) -> tuple[ssh.Completed, str]:
        old = b"muster: needs Python 3.9 or later, this is 3.6.8 (/usr/bin/python3)"
        return (ssh.Completed(1, b"", old) if on_host else ssh.Completed(0, b"[]", b"")), "podman"

    monkeypatch.setattr(checking, "_run_agent", run)
    here = NewNode("here", "here", fleet.host_key("here"), "", launch={"kind": kind, "image": "torch"})
    found = [item for item in checking.check(here, "standard") if item.item == "python on the host"]
    assert [item.mark for item in found] == marks
