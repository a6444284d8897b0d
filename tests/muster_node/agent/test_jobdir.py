"""Where a machine's fence lies: one for each machine, also where machines share a home directory. Locks that fail."""

from __future__ import annotations

import errno
import fcntl
import os
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


OVERLAY = "22 1 0:21 / / rw,relatime - overlay overlay rw,lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work\n"
LOWER = "23 22 0:22 / /rw rw - overlay overlay rw,lowerdir=/ro,upperdir=/rw/live/upper,workdir=/rw/live/work\n"


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        (OVERLAY + "23 22 0:20 / /rw rw - tmpfs tmpfs rw\n", "tmpfs"),
        (OVERLAY + "23 22 8:1 / /rw rw - ext4 /dev/sda1 rw\n", "ext4"),
        (OVERLAY + LOWER + "24 23 0:20 / /rw/live rw - tmpfs tmpfs rw\n", "tmpfs"),
        (OVERLAY + LOWER, "overlay"),
        (OVERLAY, "overlay"),  # in a container the folder of the host is not seen
        (OVERLAY + "23 22 1:0 / /rw rw - ext4 /dev/ram0 rw\n", "ram0"),
        ("22 1 0:2 / / rw - rootfs rootfs rw,size=264000000k\n23 22 8:1 / / rw - ext4 /dev/sda1 rw\n", "ext4"),
        ("22 1 254:0 / / rw - btrfs /dev/zram0 rw\n", "zram0"),
    ],
)
def test_a_file_system_is_that_which_takes_the_writes(mounts: str, kind: str) -> None:
    assert jobdir.file_system_of("/home/muster/.muster", mounts) == kind


@pytest.mark.parametrize(
    ("kind", "shared"), [("fuse", True), ("fuse.sshfs", True), ("fuseblk", False), ("nfs4", True), ("ext4", False)]
)
def test_a_disk_mounted_through_fuse_is_the_machines_own(kind: str, shared: bool) -> None:
    assert jobdir.is_shared(kind) == shared


def test_machines_that_share_a_home_directory_do_not_share_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_WORK", str(tmp_path))
    monkeypatch.setattr(jobdir, "file_system", lambda path: "nfs4")
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
    monkeypatch.setattr(jobdir, "file_system", lambda path: "ext4")
    assert jobdir.fence_dir("node-1") == jobdir.fence_dir("alias") == tmp_path
    monkeypatch.setenv("MUSTER_FENCE", "/var/lib/muster")
    assert jobdir.fence_dir("node-1") == Path("/var/lib/muster")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_not_one_whose_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fence, job = Fence(tmp_path), jobdir.JobDir(tmp_path / "job")
    fence.enter(1, "job-1", tmp_path, lambda: None)
    fence.leave()
    assert jobdir.writable(tmp_path)

    def no_lock(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_lock)
    for use in (job.open, fence.running, lambda: fence.enter(2, "job-2", tmp_path, lambda: None)):
        with pytest.raises(OSError, match="no locks here"):
            use()
    assert not jobdir.writable(tmp_path)


def test_a_lock_that_fails_while_older_work_is_awaited_is_no_held_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "running").touch()
    with (tmp_path / "running").open() as file:
        real = fcntl.flock

        def flock(fd: int, how: int) -> None:
            if os.path.samestat(os.fstat(fd), os.fstat(file.fileno())):
                raise OSError(errno.ENOLCK, "no locks left")
            real(fd, how)

        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(OSError, match="no locks left"):
            Fence(tmp_path).enter(1, "job-1", tmp_path, lambda: None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make what belongs to another user")
def test_what_root_makes_belongs_to_the_user_who_has_to_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container of docker, whose root is the host's."""
    user = 65534
    os.chown(tmp_path, user, user)
    monkeypatch.setenv("MUSTER_WORK", str(tmp_path))
    monkeypatch.setattr(jobdir, "file_system", lambda path: "nfs4")
    fence, job = Fence(jobdir.fence_dir("node-1")), jobdir.JobDir(tmp_path / "jobs" / "1")
    assert job.open()
    job.scratch_for(0, "disk")
    fence.enter(1, "1", job.path, lambda: None)
    made = {str(each.relative_to(tmp_path)): each.stat().st_uid for each in tmp_path.rglob("*") if each.is_dir()}
    assert made == dict.fromkeys(made, user)
    assert {"jobs/1/logs", "jobs/1/scratch/00_disk", "nodes/node-1"} <= set(made)
    fence.leave()
    job.close()


def test_a_job_that_another_agent_holds_is_not_opened(tmp_path: Path) -> None:
    first, second = jobdir.JobDir(tmp_path), jobdir.JobDir(tmp_path)
    assert first.open()
    assert not second.open()
    first.close()
    assert second.open()
    second.close()
