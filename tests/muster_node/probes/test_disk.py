"""The disk probe: real blocks through a real file of its own."""

import os

import pytest

from muster_node.agent import jobdir
from muster_node.hardware import open_hardware
from muster_node.probe import Skip
from muster_node.probes import disk
from muster_node.probes.disk import Disk


@pytest.fixture(autouse=True)
def local(monkeypatch):
    """Wherever the tests' folder lies."""
    monkeypatch.setattr(jobdir, "file_system", lambda path: "ext4")


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs", "rootfs", "zram0", "nfs4", "fuse.sshfs", "virtiofs", "zfs"])
def test_memory_and_another_machines_disk_are_not_measured(run_probe, monkeypatch, kind):
    monkeypatch.setattr(jobdir, "file_system", lambda path: kind)
    run = run_probe(Disk, mib=4)
    for metric in Disk.metrics:
        found = run.one(metric, "disk:scratch")
        assert (found.value, found.samples) == (None, 0)
        assert kind in found.note


def test_a_zfs_that_reads_past_its_cache_is_a_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(jobdir, "file_system", lambda path: "zfs")
    monkeypatch.setattr(disk, "_ZFS_DIRECT", tmp_path / "zfs_dio_enabled")
    assert disk.no_disk(tmp_path)
    (tmp_path / "zfs_dio_enabled").write_text("1\n")
    assert not disk.no_disk(tmp_path)


def test_this_disk_gives_back_what_it_got(run_probe, tmp_path):
    run = run_probe(Disk, mib=16)
    assert run.one("disk_mismatches", "disk:scratch").value == 0
    assert run.one("disk_write_rate").value > 1
    read = run.one("disk_read_rate")
    assert read.value > 1
    assert read.samples == 4
    assert not run.all("disk_rerun")
    assert list((tmp_path / "disk").iterdir()) == [], "the scratch file must be gone"


def test_a_changed_block_is_counted(run_probe, monkeypatch):
    honest = disk._read

    def tampered(descriptor, *rest):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        with open(path, "r+b") as file:
            file.seek(5 * 1024 * 1024)
            byte = file.read(1)
            file.seek(5 * 1024 * 1024)
            file.write(bytes([byte[0] ^ 1]))
            file.flush()
            os.fsync(file.fileno())
        return honest(descriptor, *rest)

    monkeypatch.setattr(disk, "_read", tampered)
    run = run_probe(Disk, mib=16)
    assert run.one("disk_mismatches").value == 1
    again = run.one("disk_rerun", "disk:scratch", on="disk:scratch")
    assert (again.value, again.samples) == (3, 3)


def test_a_block_that_was_misread_once_is_read_again(run_probe, monkeypatch):
    honest, reads = os.preadv, []

    def misreads(descriptor, buffers, offset):
        count = honest(descriptor, buffers, offset)
        reads.append(offset)
        if len(reads) == 2:
            buffers[0][7] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", misreads)
    run = run_probe(Disk, mib=16)
    assert run.one("disk_mismatches").value == 1
    assert run.one("disk_read_rate").samples == 4
    again = run.one("disk_rerun", "disk:scratch")
    assert (again.value, again.samples) == (0, 3)


def test_refuses_to_take_more_than_half_of_what_is_free(run_probe, tmp_path):
    status = os.statvfs(tmp_path)
    free_mib = status.f_bavail * status.f_frsize // 2**20
    with pytest.raises(Skip):
        run_probe(Disk, mib=int(free_mib * 0.6))
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_directory_that_is_not_there(run_probe, tmp_path):
    with pytest.raises(Skip):
        run_probe(Disk, mib=4, directory=str(tmp_path / "nowhere"))


def test_never_overwrites_a_file(run_probe, tmp_path):
    precious = tmp_path / f"muster-disk-{os.getpid()}.scratch"
    precious.write_text("precious")
    with pytest.raises(FileExistsError):
        run_probe(Disk, mib=4, directory=str(tmp_path))
    assert precious.read_text() == "precious"


def test_without_direct_access_it_says_so(run_probe, monkeypatch):
    honest = os.open

    def refuse(path, flags, *rest):
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return honest(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    run = run_probe(Disk, hardware=open_hardware(), mib=8)
    assert run.one("disk_mismatches").value == 0
    assert "no direct reads" in run.one("disk_read_rate").note
