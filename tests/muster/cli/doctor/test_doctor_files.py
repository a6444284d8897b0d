"""``muster doctor`` about files and disks of the controller."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from muster.cli.doctor import disks, doctor
from muster.cli.doctor.checks import Mark
from muster.settings import settings
from tests.support.servers import sshd

DISK = os.statvfs("/")


def statvfs(*, bytes_free: float = 1.0, inodes: int = 100, inodes_free: float = 1.0) -> os.statvfs_result:
    block, fragment, *_, flag, longest = DISK[:10]
    free, left = int(bytes_free * 100), int(inodes_free * inodes)
    return os.statvfs_result((block, fragment, 100, free, free, inodes, left, left, flag, longest))


@pytest.mark.needs_sshd
@pytest.mark.parametrize(("mode", "mark"), [(0o600, Mark.OK), (0o640, Mark.MISSING), (0o644, Mark.MISSING)])
def test_an_ssh_key_that_others_can_read_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, mark: Mark
) -> None:
    key = sshd.Sshd(tmp_path / "keys").key_file
    key.chmod(mode)
    extra = {"key_file": str(key)}
    monkeypatch.setenv("AIRFLOW_CONN_MUSTER_SSH", json.dumps({"conn_type": "ssh", "login": "muster", "extra": extra}))
    found = doctor.ssh_connection(settings())
    assert (found.mark, f"chmod 600 {key}" in found.fix) == (mark, mark is Mark.MISSING)


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize(
    ("disk", "named"),
    [
        (statvfs(), []),
        (statvfs(bytes_free=0.05), ["bytes"]),
        (statvfs(inodes_free=0.05), ["inodes"]),
        (statvfs(bytes_free=0.05, inodes_free=0.0), ["bytes", "inodes"]),
        (statvfs(inodes=0), []),
    ],
    ids=["room", "bytes", "inodes", "both", "without inodes"],
)
def test_a_disk_that_is_nearly_full_is_advice_once_also_where_its_folders_are_yet_to_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disk: os.statvfs_result, named: list[str], logs: bool
) -> None:
    for name in ("MUSTER_ARCHIVE", "MUSTER_HOME", "AIRFLOW__LOGGING__BASE_LOG_FOLDER"):
        monkeypatch.setenv(name, str(tmp_path / name / "of one disk"))
    monkeypatch.setattr(disks.os, "statvfs", lambda _: disk)
    found = list(disks.low(settings(), logs=logs))
    assert [each.mark for each in found] == [Mark.ADVICE] * bool(named)
    assert [what for what in ("bytes", "inodes") if any(what in each.message for each in found)] == named
