"""The check command reports missing tools and privileges before anything runs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from muster_node import check, privilege
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.vendors import vendors
from muster_node.probe import Probe
from tests.muster_node.agent.harness import Node


class NeedsMuch(Probe):
    name = "needs_much"
    stage = "intake"
    doc = "Needs a tool and PyTorch"
    needs = ("tool:no-such-tool-anywhere", "torch")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of our own, and an ordinary user."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return folder


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_root_needs_no_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert all(privilege.granted(command) for command in privilege.COMMANDS)


def test_each_command_is_allowed_by_itself(tools: Path) -> None:
    assert not privilege.granted(privilege.DMESG), "there is no sudo"
    tool(tools, "sudo", '[ "$*" = "-n -l dmesg -r" ]')
    assert [command for command in privilege.COMMANDS if privilege.granted(command)] == [privilege.DMESG]


def test_the_sudoers_file_allows_what_is_run_and_no_more() -> None:
    file = Path(__file__).parents[3] / "docs" / "examples" / "muster.sudoers"
    listed = file.read_text().split("MUSTER_READS =")[1].split("\n\n")[0].replace("\\\n", "").split(",")
    plain = (" ".join(each.split()).removesuffix(' ""') for each in listed)
    allowed = {each.removeprefix("/usr/bin/").removeprefix("/usr/sbin/") for each in plain}
    disks = (privilege.smart_log(f"nvme{number}") for number in ("[0-9]", "[1-9][0-9]"))
    assert allowed == {" ".join(command) for command in (*privilege.COMMANDS, *disks)}
    assert "*" not in file.read_text().split("MUSTER_READS =")[1]


def test_everything_missing_is_reported_with_its_remedy(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MUSTER_WORK", str(tmp_path / "file" / "work"))
    monkeypatch.setattr(check.sys, "executable", str(tools / "python-without-torch"))
    tool(tools, "python-without-torch", "echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")

    def no_hardware() -> object:
        raise RuntimeError("driver is not loaded")

    items = {item.item: item for item in check.check({"needs_much": NeedsMuch}, no_hardware)}  # type: ignore[arg-type]
    needed = {name for name, item in items.items() if item.needed_by and not item.ok}
    assert needed == {"hardware", "work directory", "torch", "no-such-tool-anywhere"}
    assert all(items[name].needed_by == ("needs_much",) for name in needed)
    assert "RuntimeError" in items["hardware"].message
    assert "set MUSTER_WORK" in items["work directory"].message
    assert "ModuleNotFoundError" in items["torch"].message
    assert not items["sudo -n dmesg -r"].ok
    assert "install fio" in items["fio"].message


def test_too_little_free_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_WORK", str(tmp_path))
    monkeypatch.setattr(check.facts, "disk_free", lambda path: 10**9)
    item = check._work_dir(("a",))
    assert not item.ok


@pytest.mark.parametrize(
    ("limit", "capabilities", "name", "missing"),
    [
        (65536, "0", "uverbs0", {"locked memory"}),
        (65536, "4000", "uverbs0", set()),
        (resource.RLIM_INFINITY, "0", "uverbs0", set()),
        (resource.RLIM_INFINITY, "0", "rdma_cm", {"RDMA devices"}),
        (resource.RLIM_INFINITY, "0", "uverbs0/a-folder", {"RDMA devices"}),
    ],
)
def test_what_rdma_lacks_is_reported_where_there_are_ports_for_it(
    limit: int, capabilities: str, name: str, missing: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root has CAP_IPC_LOCK, for which the limit does not hold; in a container it may lack it."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert check._rdma(Files(tmp_path)) == []
    status = f"Name:\tx\nCapEff:\t{capabilities}\n"
    tree = {"sys/class/infiniband/mlx5_0/fw_ver": "", f"dev/infiniband/{name}": "", "proc/self/status": status}
    for path, text in tree.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    items = check._rdma(Files(tmp_path))
    assert tuple(item.item for item in items) == check.RDMA_ITEMS
    assert {item.item for item in items if not item.ok} == missing


def test_the_tools_of_a_vendor_are_asked_for_where_it_has_a_device(tmp_path: Path) -> None:
    own = {tool for vendor in vendors() for tool in vendor.tools}
    assert own
    assert own.isdisjoint(item.item for item in check._tools({}, Files(tmp_path)))
    for vendor in vendors():
        (tmp_path / "sys/bus/pci/devices" / vendor.name).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices" / vendor.name / "vendor").write_text(vendor.pci_id)
    assert own <= {item.item for item in check._tools({}, Files(tmp_path))}


def test_a_tool_that_the_path_of_a_login_leaves_out_is_found(tmp_path: Path) -> None:
    """As on Debian, where sshd's PATH has no /usr/sbin."""
    tool(tmp_path, "nvme", "exit 0")
    code = (
        "import sys; from muster_node import cli; cli._ROOTS_PROGRAMS = sys.argv[1]; cli.main(['check', '--json'], ())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": "/nowhere"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    items = {item["item"]: item for item in json.loads(done.stdout)}
    assert (items["nvme"]["ok"], items["nvme"]["message"]) == (True, str(tmp_path / "nvme"))


def test_the_command_prints_text_and_json(node: Node, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "class version:\n    cuda = None\n    hip = None\n"
        "class cuda:\n    device_count = staticmethod(lambda: 0)\n__version__ = '9.9'\n"
    )
    env = {"PYTHONPATH": str(tmp_path)}
    as_json = node.command("check", "--json", env=env)
    items = {item["item"]: item for item in json.loads(as_json.stdout)}
    missing = items["no-such-tool-anywhere"]
    assert (missing["ok"], missing["needed_by"]) == (False, ["needy"])
    assert items["python"]["ok"]
    assert "9.9" in items["torch"]["message"]
    assert as_json.returncode == 1
    as_text = node.command("check", env=env)
    assert "MISSING" in as_text.stdout
