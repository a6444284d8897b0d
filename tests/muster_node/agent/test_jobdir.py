"""Where a machine's fence lies: one for each machine, also where machines share a home directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_node.agent import jobdir
from muster_node.agent.fence import Fence, Fenced

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
35 22 0:31 / /home rw,relatime shared:16 - nfs4 filer:/home rw,vers=4.2
36 35 0:32 / /home/a\\040b rw,relatime - lustre mds@tcp:/scratch rw,flock
40 22 0:35 / /homework rw,relatime - xfs /dev/sdb1 rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/muster/.muster", "nfs4"),
        ("/home/a b/.muster", "lustre"),
        ("/homework/.muster", "xfs"),
        ("/var/lib/muster", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount_point(path: str, kind: str) -> None:
    assert jobdir.file_system_of(path, MOUNTS) == kind


def test_machines_that_share_a_home_directory_do_not_share_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_WORK", str(tmp_path))
    monkeypatch.setattr(jobdir, "file_system_of", lambda path, mountinfo: "nfs4")
    first, second = (Fence(jobdir.fence_dir(node)) for node in ("node-1", "node-2"))
    first.enter(9, "job-1", tmp_path, lambda: None)
    second.enter(5, "job-2", tmp_path, lambda: None)  # neither fenced by token 9 nor waiting for job-1
    with pytest.raises(Fenced):
        Fence(jobdir.fence_dir("node-1")).enter(8, "job-0", tmp_path, lambda: None)
    first.leave()
    second.leave()


def test_on_a_local_disk_all_names_of_a_machine_share_its_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_WORK", str(tmp_path))
    monkeypatch.setattr(jobdir, "file_system_of", lambda path, mountinfo: "ext4")
    assert jobdir.fence_dir("node-1") == jobdir.fence_dir("alias") == tmp_path
    monkeypatch.setenv("MUSTER_FENCE", "/var/lib/muster")
    assert jobdir.fence_dir("node-1") == Path("/var/lib/muster")
