"""What ``muster node check`` makes of a node's answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from muster.cli.node import check as checking
from muster.model.nodes import NewNode
from muster.remote.connection import ssh
from muster_node.check import RDMA_ITEMS
from tests.muster import fleet
from tests.support.servers import sshd


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


@pytest.mark.parametrize(
    ("sku", "level", "mark"),
    [
        ("h100-sxm-8", "standard", checking.MISSING), ("h100-sxm-8", "long", checking.OPTIONAL),
        ("l40s-8", "standard", checking.OPTIONAL),
    ],
)  # fmt: skip
def test_perftest_is_missing_where_the_rails_of_a_block_are_measured_with_it(sku: str, level: str, mark: str) -> None:
    lacks = checking.Item(checking.MISSING, "ib_write_bw", ("ib_write_bw",), "not installed")
    (found,) = checking.for_sku([lacks], sku, level)
    assert (found.mark, "pair_rails" in found.needed_by) == (mark, mark == checking.MISSING)


@pytest.mark.parametrize(
    ("sku", "level", "mark"),
    [
        ("h100-sxm-8", "standard", checking.MISSING), ("h100-sxm-8", "long", checking.MISSING),
        ("l40s-8", "standard", checking.OPTIONAL),
    ],
)  # fmt: skip
def test_what_rdma_lacks_is_missing_where_the_rails_of_a_block_are_measured_by_it(
    sku: str, level: str, mark: str
) -> None:
    lacks = [checking.Item(checking.OPTIONAL, name, (), "limited") for name in RDMA_ITEMS]
    assert {item.mark for item in checking.for_sku(lacks, sku, level)} == {mark}


@pytest.mark.needs_sshd
@pytest.mark.parametrize(
    ("kills", "excluded", "only", "session", "marks"),
    [
        ("b true", 'as 1 "root"', "as 0", "7", [checking.MISSING]),
        ("b true", "as 0", 'as 2 "ada" "muster"', "7", [checking.MISSING]),
        ("b true", 'as 2 "root" "muster"', "as 0", "7", []),
        ("b true", "as 0", 'as 1 "ada"', "7", []),
        ("b true", 'as 1 "root"', "as 0", "", []),  # sshd without PAM opens no session there
        ("b false", 'as 1 "root"', "as 0", "7", []),
    ],
)
def test_a_system_that_ends_what_a_login_leaves_running_ends_each_job(
    kills: str, excluded: str, only: str, session: str, marks: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    answers = {"KillUserProcesses": kills, "KillExcludeUsers": excluded, "KillOnlyUsers": only}
    for name, lines in (
        ("journalctl", ["echo Started."]),
        ("busctl", [f"[ $5 != {name} ] || echo '{answer}'" for name, answer in answers.items()]),
        ("id", ["echo muster"]),
    ):
        (tmp_path / name).write_text("\n".join(["#!/bin/sh", *lines]))
        (tmp_path / name).chmod(0o700)
    with sshd.running(tmp_path / "node", {"PATH": f"{tmp_path}:/usr/bin:/bin", "XDG_SESSION_ID": session}) as server:
        monkeypatch.setenv(sshd.CONNECTION, sshd.connection(server.key_file))
        at = server.node()
        found = checking._of_login(NewNode("here", at.host, at.host_key, "", at.port, at.user or ""))
    assert [item.mark for item in found] == marks


@pytest.mark.needs_sshd
@pytest.mark.parametrize(
    ("kind", "uid", "linger", "marks"),
    [
        ("podman", "1000", "Linger=no", [checking.MISSING]),
        ("podman", "1000", "Linger=yes", []),
        ("podman", "1000", "", []),  # sshd without PAM: logind knows no such user
        ("podman", "0", "Linger=no", []),
        ("docker", "1000", "Linger=no", []),
    ],
)
def test_containers_of_a_users_own_podman_need_lingering(
    kind: str, uid: str, linger: str, marks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, answer in (("loginctl", linger), ("id", uid), ("journalctl", "Started.")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {answer}")
        (tmp_path / name).chmod(0o700)
    with sshd.running(tmp_path / "node", {"PATH": f"{tmp_path}:/usr/bin:/bin", "XDG_SESSION_ID": ""}) as server:
        monkeypatch.setenv(sshd.CONNECTION, sshd.connection(server.key_file))
        at = server.node()
        launch = {"kind": kind, "image": "torch"}
        found = checking._of_login(NewNode("here", at.host, at.host_key, "", at.port, at.user or "", launch=launch))
    assert [item.mark for item in found] == marks


@pytest.mark.needs_sshd
@pytest.mark.parametrize(("journal", "marks"), [("", [checking.OPTIONAL]), ("Started.", [])])
def test_a_node_on_which_no_reboot_can_be_explained_is_named(
    journal: str, marks: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sh", "id"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    (tmp_path / "journalctl").write_text(f"#!/bin/sh\necho {journal}")
    (tmp_path / "journalctl").chmod(0o700)
    with sshd.running(tmp_path / "node", {"PATH": str(tmp_path), "XDG_SESSION_ID": ""}) as server:
        monkeypatch.setenv(sshd.CONNECTION, sshd.connection(server.key_file))
        at = server.node()
        found = checking._of_login(NewNode("here", at.host, at.host_key, "", at.port, at.user or ""))
    assert [item.mark for item in found] == marks


@pytest.mark.parametrize(("kind", "marks"), [("podman", [checking.MISSING]), ("python", [])])
def test_tests_in_a_container_need_a_python_on_the_host_too(
    kind: str, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_node: object, _args: object, *, on_host: bool = False) -> tuple[ssh.Completed, str]:
        old = b"muster: needs Python 3.9 or later, this is 3.6.8 (/usr/bin/python3)"
        return (ssh.Completed(1, b"", old) if on_host else ssh.Completed(0, b"[]", b"")), "podman"

    monkeypatch.setattr(checking, "_run_agent", run)
    monkeypatch.setattr(checking, "_of_login", lambda _node: [])
    here = NewNode("here", "here", fleet.host_key("here"), "", launch={"kind": kind, "image": "torch"})
    found = [item for item in checking.check(here, "standard") if item.item == "python on the host"]
    assert [item.mark for item in found] == marks
