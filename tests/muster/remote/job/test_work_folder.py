"""The work folder on a real OpenSSH server: what in it is Muster's, whose it is, and what of it the next job ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from muster.model.health import Cursor
from muster.remote import sweeping
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job import jobs, scripts
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.zipapp import AgentFile
from muster_node.contract import Plan
from tests.muster.remote.job.test_jobs import KEY, Bench, bench, wait_for
from tests.muster.remote.test_sweeping import node
from tests.support.servers import sshd

__all__ = ["bench"]
pytestmark = pytest.mark.needs_sshd

SHELLS = [each for each in ("dash", "bash") if shutil.which(each)]
NEXT_KEY = AttemptKey(5).job_key("node_qualification", "n1__new", "burn_in")


def plan(key: str = NEXT_KEY, fence: int = 1) -> Plan:
    return Plan(key, "n1", "burn_in", "demo", fence, 60.0, ())


def test_the_lease_holder_stops_other_jobs_but_not_its_own(bench: Bench, client: paramiko.SSHClient) -> None:
    bench.start(seconds=600)
    bench.start(NEXT_KEY, seconds=600)
    bench.until(jobs.State.RUNNING)
    bench.until(jobs.State.RUNNING, NEXT_KEY)
    wait_for(bench.folder() / "starts")
    assert jobs.stop_others(client, bench.work, plan(NEXT_KEY), {}) == [KEY]
    assert bench.look().state is jobs.State.DONE
    assert bench.look(NEXT_KEY).state is jobs.State.RUNNING


def test_an_older_lease_stops_nothing_wherever_the_node_keeps_its_fence(
    bench: Bench, client: paramiko.SSHClient, tmp_path: Path
) -> None:
    """The node side then refuses the older plan, which would else have ended the newer one's job before."""
    bench.start(seconds=600)
    bench.until(jobs.State.RUNNING)
    wait_for(bench.folder() / "starts")
    work = Path(bench.work)
    for folder, launch in (
        (work, {}),
        (work / "nodes" / "n1", {}),
        (tmp_path / "own", {"env": {"MUSTER_FENCE": str(tmp_path / "own")}}),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        for seen in ("200\n", "no number"):
            (folder / "fence").write_text(seen)
            assert jobs.stop_others(client, bench.work, plan(fence=100), launch) == []
        (folder / "fence").unlink()
    (work / "nodes" / "n1" / "fence").write_text("100\n")
    assert jobs.stop_others(client, bench.work, plan(fence=100), {}) == [KEY]


def test_what_stays_of_an_old_job_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As of one that root wrote in a container; here ``rm`` itself refuses."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "rm").write_text("#!/bin/sh\necho \"rm: cannot remove '$3': Permission denied\" >&2\nexit 1\n")
    (tools / "rm").chmod(0o700)
    with sshd.running(tmp_path / "node", {"PATH": f"{tools}:/usr/bin:/bin"}) as server:
        work = server.home / "muster"
        with ssh.connect(server.node(), Credentials(key_file=str(server.key_file))) as client:
            assert jobs.stop_others(client, str(work), plan(), {}) == []
            assert caplog.messages == []
            old = work / "jobs" / ("a" * 24)
            old.mkdir(parents=True)
            os.utime(old, (0, 0))
            assert jobs.stop_others(client, str(work), plan(), {}) == []
    (said,) = caplog.messages
    assert old.name in said


def test_what_is_no_job_of_this_machine_stays_as_it_is(server: sshd.Sshd, client: paramiko.SSHClient) -> None:
    """Where the work folder is a home, which machines may share: a user's own folder, and another machine's job."""
    folders = Path(server.home) / "jobs"
    for name in ("thesis-2024", KEY):
        (folders / name).mkdir(parents=True)
    files = {"boot_id": "of another machine", "runtime": "podman"}
    for name, text in files.items():
        (folders / KEY / name).write_text(text)
    for name in ("thesis-2024", KEY):
        os.utime(folders / name, (0, 0))
    assert jobs.stop_others(client, str(server.home), plan(), {}) == []
    assert (folders / "thesis-2024").exists()
    assert {each.name for each in (folders / KEY).iterdir()} == set(files)


@pytest.mark.parametrize("shared", [False, True])
def test_a_container_that_a_reboot_left_is_removed_where_no_other_machine_may_run_it(
    tmp_path: Path, shared: bool
) -> None:
    tools, calls, boot = tmp_path / "tools", tmp_path / "calls", tmp_path / "boot_id"
    tools.mkdir()
    (tools / "podman").write_text(f'#!/bin/sh\necho "$*" >>{calls}\n')
    (tools / "podman").chmod(0o700)
    boot.write_text("second\n")
    with sshd.running(
        tmp_path / "node", {"PATH": f"{tools}:/usr/bin:/bin", "MUSTER_BOOT_ID_FILE": str(boot)}
    ) as server:
        work = server.home / "muster"
        job = work / "jobs" / KEY
        job.mkdir(parents=True)
        (job / "runtime").write_text("podman")
        (job / "boot_id").write_text("first")
        if shared:
            (work / "nodes").mkdir()
        with ssh.connect(server.node(), Credentials(key_file=str(server.key_file))) as client:
            assert jobs.stop_others(client, str(work), plan(), {}) == []
    assert (calls.read_text().splitlines() if calls.exists() else []) == (
        [] if shared else [f"stop -t 0 muster-{KEY}", f"rm -f muster-{KEY}"]
    )


@pytest.mark.parametrize("runtime", ["podman", "docker", ""])
def test_a_container_is_removed_by_the_runtime_that_its_job_was_started_with(tmp_path: Path, runtime: str) -> None:
    """The node may be described with another one by the time the job is stopped."""
    tools, calls = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    for name in ("podman", "docker"):
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n[ ! -e {tmp_path}/full ]\n')
        (tools / name).chmod(0o700)
    calls.touch()
    with sshd.running(tmp_path / "node", {"PATH": f"{tools}:/usr/bin:/bin"}) as server:
        job = server.home / "muster" / "jobs" / KEY
        job.mkdir(parents=True)
        (job / "runtime").write_text(runtime)
        with ssh.connect(server.node(), Credentials(key_file=str(server.key_file))) as client:
            assert jobs.stop(client, str(server.home / "muster"), KEY)
            removals = [f"{runtime} stop -t 0 muster-{KEY}", f"{runtime} rm -f muster-{KEY}"] if runtime else []
            assert calls.read_text().splitlines() == removals
            (tmp_path / "full").touch()
            assert jobs.stop(client, str(server.home / "muster"), KEY) is not bool(runtime)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(("usable", "removed", "said"), [
    (("podman", "docker"), True, "stopped"), (("docker",), True, "stopped"), ((), True, "stopped"),
    (("docker",), False, "still"),
])  # fmt: skip
def test_where_the_runtime_is_not_known_each_that_the_login_may_use_is_asked(
    tmp_path: Path, shell: str, folder: bool, usable: tuple[str, ...], removed: bool, said: str
) -> None:
    """A user deleted the job's folder, or the file system was full when it was written."""
    tools, calls, job = tmp_path / "tools", tmp_path / "calls", tmp_path / KEY
    tools.mkdir()
    calls.touch()
    if folder:
        job.mkdir()
    for name in ("podman", "docker"):
        answers = f'[ "$1" = ps ] || {str(removed).lower()}' if name in usable else "false"
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{calls}\n{answers}\n')
        (tools / name).chmod(0o700)
    line, path = [shell, "-c", scripts.STOP_ONE, "muster", str(job)], {"PATH": f"{tools}:/usr/bin:/bin"}
    assert subprocess.run(line, check=True, capture_output=True, text=True, env=path).stdout.strip() == said
    asked = [each for each in calls.read_text().splitlines() if " rm " in each]
    assert asked == [f"{name} rm -f muster-{KEY}" for name in usable]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("runtime", ["podman", ""])
def test_a_job_whose_runtime_cannot_be_written_is_not_started(tmp_path: Path, shell: str, runtime: str) -> None:
    job = tmp_path / KEY
    (job / "runtime").mkdir(parents=True)
    (job / "plan.json").touch()
    words = [str(job), str(tmp_path), "boot", f"touch {tmp_path}/ran", runtime, scripts.RUN]
    done = subprocess.run([shell, "-c", scripts.START, "muster", *words], check=False, capture_output=True)
    assert done.returncode == 42
    assert not (job / "started").exists()
    assert not (tmp_path / "ran").exists()


def test_no_file_of_a_jobs_folder_is_a_command(server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path) -> None:
    job = Path(server.home) / "muster" / "jobs" / KEY
    job.mkdir(parents=True)
    (job / "runtime").write_text(f"touch {tmp_path}/ran")
    assert jobs.stop(client, str(job.parent.parent), KEY)
    jobs.stop_others(client, str(job.parent.parent), plan(), {})
    assert not (tmp_path / "ran").exists()


def test_a_link_is_followed_once(server: sshd.Sshd, client: paramiko.SSHClient) -> None:
    """Who may change the link could lead later steps to a folder of their own."""
    (Path(server.home) / "work").mkdir()
    (Path(server.home) / "muster").symlink_to("work")
    assert jobs.look(client, "muster", KEY, "").work == str((Path(server.home) / "work").resolve())


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to others")


def theirs(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, 65534, 65534)


def within(name: str) -> Callable[[Path], None]:
    """A user has made a folder in one of ours, which was open to all until now."""

    def made(work: Path) -> None:
        work.mkdir()
        theirs(work / name)

    return made


@AS_ROOT
@pytest.mark.parametrize("made", [theirs, within("agents"), within("jobs")])
def test_a_folder_that_another_user_made_first_is_not_used(
    server: sshd.Sshd, who: Credentials, client: paramiko.SSHClient, made: Callable[[Path], None]
) -> None:
    """As in a scratch folder that all users may write: its owner would choose what runs under our login."""
    work = Path(server.home) / "muster"
    made(work)
    not_used(server, who, client, work)


@pytest.mark.parametrize(("mode", "group"), [(0o1777, None), (0o757, None), pytest.param(0o775, 65534, marks=AS_ROOT)])
def test_a_folder_that_other_users_may_write_is_not_used(
    server: sshd.Sshd, who: Credentials, client: paramiko.SSHClient, mode: int, group: int | None
) -> None:
    work = Path(server.home) / "muster"
    work.mkdir()
    os.chown(work, -1, os.getegid() if group is None else group)
    work.chmod(mode)
    not_used(server, who, client, work)


def test_a_link_to_a_folder_that_is_not_there_yet_is_not_used(
    server: sshd.Sshd, who: Credentials, client: paramiko.SSHClient
) -> None:
    work = Path(server.home) / "muster"
    work.symlink_to("later")
    not_used(server, who, client, work, made=False)


def not_used(server: sshd.Sshd, who: Credentials, client: paramiko.SSHClient, work: Path, *, made: bool = True) -> None:
    before = set(work.rglob("*"))
    for use in (
        lambda: jobs.look(client, str(work), KEY, ""),
        lambda: jobs.stop_others(client, str(work), plan(), {}),
        *([lambda: jobs.clean(client, str(work), "n1", {})] * made),
    ):
        with pytest.raises(ssh.RemoteError):
            use()
    sent = AgentFile(Path(__file__), "0" * 64)

    async def swept() -> list[sweeping.Answer]:
        pair = (node(server), Cursor("n1", "", 0.0))
        return [each async for each in sweeping.read_all([pair], who, sent, parallel=1, limit_s=60.0)]

    (answer,) = asyncio.run(swept())
    assert answer.unreadable
    assert not {each for each in set(work.rglob("*")) - before if each.is_file()}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_what_is_looked_at_is_there_before_another_user_can_make_it(tmp_path: Path, shell: str, umask: int) -> None:
    """Whose it is was asked first: a user who made it after that could replace the agent later."""
    work = tmp_path / "new" / "muster"
    look = [shell, "-c", scripts.LOOK, "muster", str(work), KEY, "0" * 64]
    subprocess.run(look, check=True, umask=umask, capture_output=True)
    found = {each.name: each.stat() for each in (work, work / "agents", work / "jobs")}
    assert {(each.st_uid, each.st_mode & 0o777) for each in found.values()} == {(os.geteuid(), 0o700)}
    subprocess.run(look, check=True, capture_output=True)
    (work / "jobs").chmod(0o777)
    assert subprocess.run(look, check=False, capture_output=True).returncode == scripts.UNUSABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize("shell", SHELLS)
def test_without_root_it_is_the_logins_own_folder_alone(shell: str) -> None:
    def look(work: Path) -> int:
        line = [shell, "-c", scripts.LOOK, "muster", str(work), KEY, "0" * 64]
        return subprocess.run(line, check=False, capture_output=True, user=65534, group=65534).returncode

    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        scratch.chmod(0o1777)
        roots = scratch / "roots"
        roots.mkdir(mode=0o755)
        assert look(scratch / "own") == 0
        assert {look(roots), look(roots / "new"), look(scratch)} == {scripts.UNUSABLE}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("mode", "owner", "group", "status"),
    [
        (0o755, -1, -1, 0),
        (0o775, -1, -1, 0),  # the login's own group
        (0o1777, -1, -1, 0),
        (0o757, -1, -1, scripts.UNUSABLE),
        pytest.param(0o775, -1, 65534, scripts.UNUSABLE, marks=AS_ROOT),
        pytest.param(0o755, 65534, -1, scripts.UNUSABLE, marks=AS_ROOT),
    ],
)
def test_no_other_user_could_put_another_folder_in_its_place(
    tmp_path: Path, shell: str, mode: int, owner: int, group: int, status: int
) -> None:
    site = tmp_path / "site"
    (site / "ours").mkdir(mode=0o755, parents=True)
    os.chown(site, owner, group)
    site.chmod(mode)
    look = [shell, "-c", scripts.LOOK, "muster", str(site / "ours" / "muster"), KEY, "0" * 64]
    assert subprocess.run(look, check=False, capture_output=True).returncode == status


@AS_ROOT
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("group", "status"), [(40001, 0), (100, scripts.UNUSABLE)], ids=["the user's", "all users'"])
def test_a_group_may_write_that_is_the_users_alone(shell: str, group: int, status: int) -> None:
    """Where everybody is in one group, anybody could put another file in the agent's place."""
    with tempfile.TemporaryDirectory() as made:
        work = Path(made) / "muster"
        work.mkdir()
        Path(made).chmod(0o755)
        os.chown(work, 40001, group)
        work.chmod(0o775)
        look = [shell, "-c", scripts.LOOK, "muster", str(work), KEY, "0" * 64]
        done = subprocess.run(look, check=False, capture_output=True, user=40001, group=group, extra_groups=[])
    assert done.returncode == status


NODE_WIDE = ("fence", "fence.lock", "running", "gpu-settings.json")


def test_what_muster_put_on_a_node_is_deleted_and_nothing_else(server: sshd.Sshd, client: paramiko.SSHClient) -> None:
    work = Path(server.home) / "muster"
    agent = f"agents/{'a' * 64}.pyz"
    kept = ["agents", "agents/smith", "jobs", "jobs/thesis-2024", "notes.txt"]
    for folder in (f"jobs/{KEY}", "jobs/thesis-2024", "agents"):
        (work / folder).mkdir(parents=True)
    for name in (*NODE_WIDE, "notes.txt", agent, f"{agent}.77.part", "agents/smith"):
        (work / name).write_text("1")
    assert jobs.clean(client, str(work), "n1", {}) != ""
    assert sorted(str(each.relative_to(work)) for each in work.rglob("*")) == kept
    for name in ("jobs/thesis-2024", "agents/smith", "notes.txt"):
        (work / name).rmdir() if (work / name).is_dir() else (work / name).unlink()
    assert jobs.clean(client, "muster", "n1", {}) == ""
    assert not work.exists()
    assert jobs.clean(client, "muster", "n1", {}) == ""


@pytest.mark.parametrize("own", [False, True])
def test_where_machines_share_a_folder_the_others_jobs_stay(
    server: sshd.Sshd, client: paramiko.SSHClient, tmp_path: Path, own: bool
) -> None:
    work, fence = Path(server.home) / "muster", tmp_path / "own" / "fence"
    for folder in (work / "agents", *((fence.parent,) if own else (work / "nodes" / "n2",))):
        folder.mkdir(parents=True)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for name, booted in ((KEY, "another"), (NEXT_KEY, boot)):
        (work / "jobs" / name).mkdir(parents=True)
        (work / "jobs" / name / "boot_id").write_text(booted)
    before = set(work.rglob("*"))
    mine = {each for each in before if own and NEXT_KEY in str(each)}
    made = fence.parent if own else work / "nodes" / "n1"
    made.mkdir(exist_ok=True)
    for name in NODE_WIDE:
        (made / name).write_text("1")
    launch = {"env": {"MUSTER_FENCE": str(fence.parent)}} if own else {}
    assert jobs.clean(client, str(work), "n1", launch) != ""
    assert set(work.rglob("*")) == before - mine
    assert not any((made / name).exists() for name in NODE_WIDE)
