"""Tests as jobs of Slurm: when they are refused, what they ask for, how long they wait; its commands are scripts."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from muster.admission.backend import LIMIT_MINUTES
from muster.admission.backends.slurm import job
from muster.errors import BadScheduler, LeftAlone, SchedulerDown
from tests.muster.admission.backends.slurm.conftest import Commands, write

HOUR = 60
"""Of a test whose stages may take an hour."""

CONFIG = "PreemptType = preempt/partition_prio\nPreemptExemptTime = 00:00:00\n"
USERS = "PartitionName=users PriorityTier=10 PreemptMode=OFF GraceTime=0 State=UP Nodes=n[0-1]\n"
OURS = "PartitionName=muster PriorityTier=1 PreemptMode=CANCEL GraceTime=0 MaxTime=UNLIMITED State=UP Nodes=n[0-1]\n"


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
        ("", "", "MaxTime=00:59:00", True),
        ("", "", "MaxTime=01:00:00", False),
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
            tests.check(["n0"], HOUR)
    else:
        tests.check(["n0", "n1"], HOUR)
    with pytest.raises(BadScheduler):
        tests.check(["n0", "n9"], HOUR)


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
        tests.check(["n0"], HOUR)


@pytest.mark.parametrize(
    ("hours", "longest", "asked"),
    [
        (119, "4-22:59:00", None),
        (119, "4-23:00:00", 119 * 60),
        (119, "UNLIMITED", 119 * 60),
        (2, "02:00:00", 2 * 60),
        (2, "05:30:00", 330),
        (2, "UNLIMITED", LIMIT_MINUTES),
        (24, "UNLIMITED", LIMIT_MINUTES),
    ],
)
def test_a_test_asks_slurm_for_a_day_or_for_the_time_of_its_stages(
    commands: Commands, tmp_path: Path, hours: int, longest: str, asked: int | None
) -> None:
    """No more: a job above the limit of its account or QOS never starts."""
    calls = begin(commands, tmp_path, scontrol(ours=f"MaxTime={longest}"), hours * 60)
    assert (f"--time={asked} --time-min={hours * 60} " in calls) is (asked is not None)


@pytest.mark.parametrize(
    ("gres", "asked"),
    [
        ("gpu:8", "gpu:8"),
        ("gpu:h100:8(S:0-1),shard:h100:64(S:0,1)", "gpu:h100:8"),
        ("gpu:1g.10gb:4(S:0,1),nic:2,gpu:2g.20gb:2(S:0-1)", "gpu:1g.10gb:4,gpu:2g.20gb:2"),
        ("nic:2", ""),
        ("(null)", ""),
    ],
)
def test_a_test_asks_for_all_gpus_of_its_node(commands: Commands, tmp_path: Path, gres: str, asked: str) -> None:
    """Without --all, a node that is in hidden partitions alone is not found."""
    calls = begin(commands, tmp_path, f"case \"$*\" in *--all*node*) echo 'NodeName=n0 Gres={gres} State=IDLE' ;;\n"
                  f"*) {scontrol()}\n;;\nesac", HOUR)  # fmt: skip
    assert [word for word in calls.split() if word.startswith("--gres")] == ([f"--gres={asked}"] if asked else [])


def begin(commands: Commands, tmp_path: Path, scontrol: str, minutes: int) -> str:
    """Returns the commands that a test of so many minutes gave."""
    queue = f"[ -e {tmp_path}/sent ] && echo '7 RUNNING None' || true"
    tests = commands(scontrol=scontrol, sinfo=write("n0"), squeue=queue, sbatch=f"touch {tmp_path}/sent").tests
    assert tests is not None
    with contextlib.suppress(BadScheduler):
        tests.begin("n0", "muster-test-1", minutes)
    return (tmp_path / "calls").read_text()


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
        tests.begin("n0", "muster-test-1", HOUR)
        return
    with pytest.raises(raised, match=shown.split(" ")[1].rstrip(",").replace("None", r"\(")):
        tests.begin("n0", "muster-test-1", HOUR)
    assert "scancel --me 7" in (tmp_path / "calls").read_text()


def test_a_test_waits_for_slurms_backfill_and_for_the_reason_that_stays() -> None:
    assert job.START_S > 2 * 30, "bf_interval unless set"
    assert job.HINDERED_S > job.ASKED_EVERY_S
