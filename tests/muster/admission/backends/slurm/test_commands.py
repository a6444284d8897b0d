"""What the Slurm backend makes of what Slurm's commands write, where no real Slurm can be brought to write it."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.admission.backend import LIMIT_MINUTES, Mark
from muster.admission.backends.slurm import job
from muster.admission.backends.slurm.backend import Slurm
from muster.admission.clusters import backend_of
from muster.errors import BadScheduler, LeftAlone, SchedulerDown

ME = getpass.getuser()
CONFIG = "PreemptType = preempt/partition_prio\nPreemptExemptTime = 00:00:00\n"
USERS = "PartitionName=users PriorityTier=10 PreemptMode=OFF GraceTime=0 State=UP Nodes=n[0-1]\n"
OURS = "PartitionName=muster PriorityTier=1 PreemptMode=CANCEL GraceTime=0 MaxTime=UNLIMITED State=UP Nodes=n[0-1]\n"

Commands = Callable[..., Slurm]
MARK = Mark("PASS", datetime.date(2026, 11, 25), "00ff")


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Returns what makes a backend whose commands are shell scripts; each call is a line of ``tmp_path/calls``."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def make(settings: dict[str, Any] | None = None, **scripts: str) -> Slurm:
        for name, script in scripts.items():
            path = tmp_path / name
            path.write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/calls\n{script}\n')
            path.chmod(0o755)
        chosen = {"kind": "slurm", "test_partition": "muster"} | (settings or {})
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": chosen}))
        found = backend_of("alpha")
        assert isinstance(found, Slurm)
        return found

    return make


def write(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"


SQUEUE = """
case "$*" in
*--nodelist*) printf '1|ada\\n2|bob\\n' ;;
*) echo train ;;
esac
"""


@pytest.mark.parametrize(
    ("answer", "may"), [("Invalid node name specified", True), ("Invalid user id", False), ("Unable to contact", False)]
)
def test_a_login_without_rights_is_found_without_a_change(commands: Commands, answer: str, may: bool) -> None:
    """Copies the answers of slurmctld 22.05 to the users root and nobody, as read from a real one by hand."""
    backend = commands(scontrol=f"[ \"$*\" = 'show config' ] || {{ echo 'slurm_update error: {answer}' >&2; exit 1; }}")
    if may:
        backend.check_rights()
        return
    with pytest.raises(SchedulerDown):
        backend.check_rights()


SAVES = "SuspendProgram = /usr/local/sbin/off\nSuspendTime = 600 sec\n"
NEVER = SAVES.replace("600 sec", "INFINITE")


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (f"{SAVES}SuspendExcStates = (null)\n", True),
        (f"{SAVES}SuspendExcStates = DOWN,NOT_RESPONDING\n", True),
        (f"{SAVES}SuspendExcStates = down,drain\n", False),
        (f"{SAVES}SuspendExcNodes = (null)\n", True),  # as before 23.02
        (f"{SAVES}SuspendExcNodes = n[0-1]\n", False),
        (f"{NEVER}SuspendExcStates = (null)\n", False),
        ("SuspendProgram = (null)\nSuspendTime = 600 sec\nSuspendExcStates = (null)\n", False),
        ("SchedulerParameters = bf_continue,extra_constraints\n", True),
        ("SchedulerParameters = (null)\n", False),
    ],
)
def test_settings_that_switch_drained_nodes_off_or_refuse_our_marks_are_found(
    commands: Commands, config: str, refused: bool
) -> None:
    answers = f"""case "$*" in
    *config*) {write(config)}
    ;;
    *) echo 'slurm_update error: Invalid node name specified' >&2; exit 1 ;;
    esac"""
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        commands(scontrol=answers).check_rights()


@pytest.mark.parametrize("ends_jobs", [False, True])
def test_that_sudo_lets_nobody_cancel_jobs_is_found_before_one_has_to_be(commands: Commands, ends_jobs: bool) -> None:
    """sudo here grants ``scontrol`` alone, as the example's file does as shipped; ``sudo -l`` then ends with 1."""
    refused = "echo 'slurm_update error: Invalid node name specified' >&2; exit 1"
    sudo = f'case "$*" in *scancel*) exit 1 ;; *) {refused} ;; esac'
    backend = commands({"sudo": True, "end_corrupted_jobs": ends_jobs}, sudo=sudo, scontrol=":")
    if not ends_jobs:
        backend.check_rights()
        return
    with pytest.raises(SchedulerDown, match="end_corrupted_jobs"):
        backend.check_rights()


def test_a_job_that_was_ended_is_named_though_the_next_cannot_be_ended(commands: Commands) -> None:
    backend = commands({"end_corrupted_jobs": True}, squeue=SQUEUE, scancel='[ "$1" = 1 ]')
    assert backend.end_jobs is not None
    ended = iter(backend.end_jobs("n0"))
    assert next(ended) == "1 (train) of ada"
    with pytest.raises(SchedulerDown):
        next(ended)


def test_jobs_that_slurm_hides_without_all_are_seen_and_ended(commands: Commands) -> None:
    """squeue(1): without --all, no jobs of partitions that are hidden, or closed to the caller's group."""
    squeue = """
    case "$*" in
    *--all*--nodelist*) printf '1|CORP\\\\john doe\\n2|bob\\n' ;;
    *--nodelist*) printf '2|bob\\n' ;;
    *) echo train ;;
    esac
    """
    backend = commands({"end_corrupted_jobs": True}, squeue=squeue, scancel="true")
    assert backend.end_jobs is not None
    assert list(backend.end_jobs("n0")) == [r"1 (train) of CORP\john doe", "2 (train) of bob"]


@pytest.mark.parametrize("line", ["x|ada", "1 2|ada", "-1|ada", "1|", "1"])
def test_a_list_of_jobs_that_cannot_be_read_ends_none(commands: Commands, tmp_path: Path, line: str) -> None:
    backend = commands({"end_corrupted_jobs": True}, squeue=write(line), scancel="true")
    assert backend.end_jobs is not None
    with pytest.raises(SchedulerDown):
        list(backend.end_jobs("n0"))
    assert "scancel" not in (tmp_path / "calls").read_text()


def scontrol(config: str = "", users: str = "", ours: str = "") -> str:
    return f"""case "$*" in
    *config*) {write(CONFIG + config)}
    ;;
    *) {write(" ".join([USERS.strip(), users]) + chr(10) + " ".join([OURS.strip(), ours]))}
    ;;
    esac"""


@pytest.mark.parametrize(
    ("config", "users", "ours", "refused"),
    [
        ("", "", "", False),
        ("GraceTime = 300\nEmpty = \n", "AllowQos= X=Y ", "Empty= ", False),
        ("PreemptType = preempt/none\n", "", "", True),
        ("PreemptType = preempt/qos\n", "", "", True),
        ("PreemptExemptTime = 00:30:00\n", "", "", True),
        ("PreemptExemptTime = -1\n", "", "", False),
        ("PreemptType = \n", "", "", True),
        ("SchedulerParameters = defer,bf_interval=120\n", "", "", True),
        ("SchedulerParameters = bf_interval=45,bf_continue\n", "", "", False),
        ("SchedulerParameters = (null)\n", "", "", False),
        ("", "PriorityTier=1", "", True),
        ("", "", "PriorityTier=10", True),
        ("", "", "PreemptMode=OFF", True),
        ("", "", "PreemptMode=REQUEUE", True),
        ("", "", "GraceTime=300", True),
        ("", "", "State=DOWN", True),
        ("", "", "State=DRAIN", True),
        ("", "", "State=INACTIVE", True),
        ("", "", "PartitionName=other", True),
        ("", "MaxTime=00:10:00", "", False),
        ("", "", "MaxTime=23:59:00", True),
        ("", "", "MaxTime=1-00:00:00", False),
        ("", "", "MaxTime=2-12:00:00", False),
    ],
)
def test_settings_of_slurm_that_would_make_a_user_or_a_test_wait(
    commands: Commands, config: str, users: str, ours: str, refused: bool
) -> None:
    tests = commands(scontrol=scontrol(config, users, ours), sinfo=write("n0\nn1")).tests
    assert tests is not None
    if refused:
        with pytest.raises(BadScheduler):
            tests.check(["n0"], LIMIT_MINUTES)
    else:
        tests.check(["n0", "n1"], LIMIT_MINUTES)
    with pytest.raises(BadScheduler):
        tests.check(["n0", "n9"], LIMIT_MINUTES)


@pytest.mark.parametrize(
    ("hosts", "refused"), [("cpu[1-400]", False), ("(null)", False), ("cpu[1-400],n0", True), ("ALL", True)]
)
def test_a_partition_that_has_none_of_the_nodes_needs_no_higher_tier(
    commands: Commands, hosts: str, refused: bool
) -> None:
    other = f"\nPartitionName=cpu PriorityTier=1 PreemptMode=OFF GraceTime=0 State=UP Nodes={hosts}"
    tests = commands(scontrol=scontrol(ours=other), sinfo=write("n0")).tests
    assert tests is not None
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        tests.check(["n0"], LIMIT_MINUTES)


@pytest.mark.parametrize(("longest", "refused"), [("2-12:00:00", True), ("5-00:00:00", False), ("UNLIMITED", False)])
def test_a_test_asks_slurm_for_the_time_of_its_stages(
    commands: Commands, tmp_path: Path, longest: str, refused: bool
) -> None:
    ours, queue = f"MaxTime={longest}", f"[ -e {tmp_path}/sent ] && echo '7 RUNNING None' || true"
    tests = commands(
        scontrol=scontrol("", "", ours), sinfo=write("n0"), squeue=queue, sbatch=f"touch {tmp_path}/sent"
    ).tests
    assert tests is not None
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        tests.begin("n0", "muster-test-1", 119 * 60)
    assert ("--time=7140 " in (tmp_path / "calls").read_text()) is not refused


RESERVED = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"


@pytest.mark.parametrize(
    ("shown", "raised"),
    [
        ("RUNNING None", None),
        ("PENDING Priority", LeftAlone),
        ("PENDING Resources", LeftAlone),
        ("PENDING None", LeftAlone),
        ("PENDING ReqNodeNotAvail, May be reserved for other job", LeftAlone),
        (f"PENDING {RESERVED}", LeftAlone),
        (f"PENDING {RESERVED.replace(' ', '_')}", LeftAlone),
        ("CONFIGURING None", LeftAlone),
        ("COMPLETING None", LeftAlone),
        ("PENDING PartitionTimeLimit", SchedulerDown),
        ("PENDING AssocMaxWallDurationPerJobLimit", SchedulerDown),
        ("PENDING JobHeldAdmin", SchedulerDown),
    ],
)
def test_a_test_that_slurm_does_not_start_waits_for_users_by_slurms_own_reason_alone(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, raised: type[Exception] | None
) -> None:
    for name in ("START_S", "HINDERED_S", "ASKED_EVERY_S"):
        monkeypatch.setattr(f"muster.admission.backends.slurm.job.{name}", 0.0)
    queue = write(f"7 {shown}")
    tests = commands(scontrol=scontrol(), sinfo=write("n0"), squeue=queue, sbatch="echo 7", scancel="true").tests
    assert tests is not None
    if raised is None:
        tests.begin("n0", "muster-test-1", LIMIT_MINUTES)
        return
    with pytest.raises(raised, match=shown.split(" ")[1].rstrip(",").replace("None", r"\(")):
        tests.begin("n0", "muster-test-1", LIMIT_MINUTES)
    assert "scancel --me 7" in (tmp_path / "calls").read_text()


def test_a_test_waits_for_slurms_backfill_and_for_the_reason_that_stays() -> None:
    assert job.START_S > 2 * 30, "bf_interval unless set"
    assert job.HINDERED_S > job.ASKED_EVERY_S


def node(**fields: Any) -> dict[str, Any]:
    return {"name": "n0", "state": "idle", "state_flags": [], "reason": "", "alloc_cpus": 0} | fields


NEWER = {
    "state": ["IDLE", "DRAIN"],
    "reason": "muster: x",
    "reason_set_by_user": ME,
    "reason_changed_at": {"set": True, "infinite": False, "number": 1_700_000_000},
    "features": ["h100", "muster"],
}
OLDER = NEWER | {
    "state": "idle",
    "state_flags": ["DRAIN"],
    "reason_changed_at": 1_700_000_000,
    "features": "h100,muster",
}


@pytest.mark.parametrize("fields", [OLDER, NEWER], ids=["22.05", "newer"])
def test_nodes_in_the_json_of_older_and_newer_versions(commands: Commands, fields: dict[str, Any]) -> None:
    backend = commands(sinfo=write(json.dumps({"nodes": [node(**fields), node(name="n1")]})))
    seen = backend.look(["n0", "n1"])
    assert (seen["n0"].ours, seen["n0"].open, seen["n0"].marked) == (True, False, True)
    assert seen["n1"].open
    foreign = commands(sinfo=write(json.dumps({"nodes": [node(**fields | {"reason": "fan"}), node(name="n1")]})))
    since = foreign.look(["n0", "n1"])["n0"].foreign_since
    assert since
    assert since.timestamp() == 1_700_000_000


def test_where_sinfo_writes_no_nodes_scontrol_does(commands: Commands) -> None:
    """From 23.02 on, ``sinfo --json`` groups nodes, and ``scontrol --json`` writes them."""
    grouped = write(json.dumps({"sinfo": [{"nodes": {"nodes": ["n0"]}}], "errors": []}))
    backend = commands(sinfo=grouped, scontrol=write(json.dumps({"nodes": [node(state=["MIXED"]), node(name="n1")]})))
    assert backend.look(["n0", "n1"])["n0"].used_by


@pytest.mark.parametrize("state", [{}, [], [1], 7])
def test_a_state_that_cannot_be_read_concerns_its_node_alone_and_it_is_not_changed(
    commands: Commands, tmp_path: Path, state: Any
) -> None:
    listed = {"nodes": [node(state=state), node(name="n1")]}
    backend = commands(sinfo=write(json.dumps(listed)), squeue="true", scontrol="true")
    seen = backend.look(["n0", "n1"])
    assert (bool(seen["n0"].apart), seen["n1"].open) == (True, True)
    for change in (lambda: backend.withdraw("n0", "failed"), lambda: backend.admit("n0", MARK)):
        with pytest.raises(SchedulerDown):
            change()
    assert "update" not in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("conf", ["/etc/slurm/alpha.conf", ""])
def test_a_command_under_sudo_reaches_the_cluster_of_the_settings_or_none(
    commands: Commands, tmp_path: Path, conf: str
) -> None:
    """Without the line in sudoers that keeps SLURM_CONF, sudo refuses the command instead of dropping the variable."""
    settings = {"sudo": True, "slurm_conf": conf, "end_corrupted_jobs": True}
    backend = commands(settings, squeue=SQUEUE, sudo="true")
    assert backend.end_jobs is not None
    assert len(list(backend.end_jobs("n0"))) == 2
    asked = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("sudo")]
    assert len(asked) == 2
    assert all(("--preserve-env=SLURM_CONF" in line) is bool(conf) for line in asked)


@pytest.mark.parametrize(
    ("states", "is_open", "apart"),
    [
        (["IDLE"], True, ""),
        (["MIXED", "COMPLETING"], True, ""),
        (["IDLE", "CLOUD", "DYNAMIC_NORM"], True, ""),
        (["DOWN", "DYNAMIC_NORM"], False, "down"),
        (["IDLE", "BLOCKED"], False, "blocked"),
        (["IDLE", "CHILLED"], False, "CHILLED"),
        (["HIBERNATING"], False, "HIBERNATING"),
        (["IDLE", "DRAIN", "CHILLED"], False, "CHILLED"),
    ],
)
def test_a_node_is_free_only_if_each_of_its_flags_is_known(
    commands: Commands, states: list[str], is_open: bool, apart: str
) -> None:
    """As scontrol of 25.11 writes nodes, whose next version may add flags."""
    node = {
        "name": "n0", "state": states, "reason": "Not responding", "reason_set_by_user": "slurm", "features": ["a"],
        "reason_changed_at": {"set": True, "infinite": False, "number": 1769096589}, "alloc_cpus": 0,
    }  # fmt: skip
    backend = commands(sinfo=write('{"sinfo": [{}]}'), scontrol=write(json.dumps({"nodes": [node]})), squeue="true")
    seen = backend.look(["n0"])["n0"]
    assert seen.open is is_open
    assert (apart in seen.apart) if apart else not seen.apart


def shown(name: str, **changed: Any) -> dict[str, Any]:
    return {"name": name, "state": "idle", "state_flags": [], "reason": "", "features": "", "alloc_cpus": 0} | changed


@pytest.mark.parametrize(
    "odd",
    [
        {"reason": "fan \xe9"},  # not UTF-8: Slurm writes a Reason byte by byte as it was typed
        {"reason": "cut in the midst of \xc3"},
        {"reason_changed_at": 10**18, "state_flags": ["DRAIN"], "reason": "by hand", "reason_set_by_user": "ada"},
        {"reason": ["a list"]},
        {"state": None},
    ],
)
def test_one_node_that_cannot_be_read_stops_none_of_the_others(commands: Commands, odd: dict[str, Any]) -> None:
    content = json.dumps({"errors": [], "nodes": [shown("n0", **odd), shown("n1")]}, ensure_ascii=False)
    backend = commands(sinfo="cat <<'END'\n@\nEND", squeue="true")
    path = Path(os.environ["PATH"].partition(":")[0]) / "sinfo"
    path.write_bytes(path.read_bytes().replace(b"@", content.encode("latin-1")))
    seen = backend.look(["n0", "n1"])
    assert seen["n1"].open
    assert bool(seen["n0"].apart) is not seen["n0"].open


@pytest.mark.parametrize("name", [["n1"], {"n": 1}, None, 7])
def test_a_node_whose_name_is_no_text_stops_no_other(commands: Commands, name: object) -> None:
    shown = [{"name": name, "state": "idle"}, {"name": "n2", "state": "idle"}]
    seen = commands(sinfo=write(json.dumps({"nodes": shown, "errors": []})), squeue="").look(["n2", "n3"])
    assert list(seen) == ["n2"]
