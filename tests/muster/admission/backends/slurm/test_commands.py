"""What the Slurm backend makes of what Slurm's commands write, where no real Slurm can be brought to write it."""

from __future__ import annotations

import contextlib
import datetime
import getpass
import json
import os
from pathlib import Path
from typing import Any

import pytest

from muster.admission.backend import Mark
from muster.errors import BadScheduler, SchedulerDown
from tests.muster.admission.backends.slurm.conftest import Commands, write

ME = getpass.getuser()
MARK = Mark("PASS", datetime.date(2026, 11, 25), "00ff")

SQUEUE = """
case "$*" in
*%u*) printf '1|ada\\n2|bob\\n' ;;
*) echo train ;;
esac
"""
UNKNOWN = "echo 'slurm_update error: Invalid node name specified' >&2; exit 1"


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


def configured(config: str) -> str:
    return f"""case "$*" in
    *config*) {write(config)}
    ;;
    *) {UNKNOWN} ;;
    esac"""


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
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        commands(scontrol=configured(config)).check_rights()


@pytest.mark.parametrize(
    ("private", "sudo", "ends_jobs", "refused"),
    [
        ("accounts,jobs", True, True, True),
        ("accounts,jobs", False, True, False),  # an operator's login sees them
        ("accounts,jobs", True, False, False),
        ("accounts,usage", True, True, False),
        ("none", True, True, False),
    ],
)
def test_that_jobs_are_hidden_is_found_before_one_has_to_be_ended(
    commands: Commands, private: str, sudo: bool, ends_jobs: bool, refused: bool
) -> None:
    chosen = {"sudo": sudo, "end_corrupted_jobs": ends_jobs}
    granted = f'case "$*" in *scancel*) ;; *) {UNKNOWN} ;; esac'
    backend = commands(chosen, scontrol=configured(f"PrivateData = {private}"), sudo=granted)
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        backend.check_rights()


@pytest.mark.parametrize(("state", "raised"), [("allocated", True), ("idle", False)])
def test_a_node_in_use_without_a_job_that_is_shown_does_not_count_as_freed(
    commands: Commands, state: str, raised: bool
) -> None:
    """As with PrivateData=jobs."""
    listed = write(json.dumps({"nodes": [node(state=state, state_flags=["DRAIN"])]}))
    backend = commands({"end_corrupted_jobs": True}, sinfo=listed, squeue="true", scancel="true")
    assert backend.end_jobs is not None
    with pytest.raises(SchedulerDown) if raised else contextlib.nullcontext():
        assert list(backend.end_jobs("n0")) == []


@pytest.mark.parametrize("granted", ["", "[0-9]+"], ids=["no job", "whole jobs"])
@pytest.mark.parametrize("ends_jobs", [False, True])
def test_that_sudo_lets_nobody_cancel_jobs_is_found_before_one_has_to_be(
    commands: Commands, ends_jobs: bool, granted: str
) -> None:
    """The example's file grants ``scontrol`` alone as shipped, and its older form no task of an array; ``sudo -l``
    then ends with 1.
    """
    sudo = f'case "$*" in *scancel*) echo "$*" | grep -qE \'scancel {granted}$\' ;; *) {UNKNOWN} ;; esac'
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
    *--all*%u*) printf '1|CORP\\\\john doe\\n2|bob\\n' ;;
    *%u*) printf '2|bob\\n' ;;
    *) echo train ;;
    esac
    """
    backend = commands({"end_corrupted_jobs": True}, squeue=squeue, scancel="true")
    assert backend.end_jobs is not None
    assert list(backend.end_jobs("n0")) == [r"1 (train) of CORP\john doe", "2 (train) of bob"]


def test_a_task_of_an_array_and_a_part_of_a_job_end_alone(commands: Commands, tmp_path: Path) -> None:
    """%A of the task that Slurm started last, and of the first part, is the number of the whole; of a part, squeue
    lists all parts, unless it is asked for those on one node.
    """
    squeue = """
    case "$*" in
    *--nodelist*%i*%u*) printf '36_3|ada\\n40+1|bob\\n' ;;
    *--nodelist*%u*) printf '36|ada\\n40|bob\\n' ;;
    *--nodelist*) echo train ;;
    *) printf 'train\\ntrain\\n' ;;
    esac
    """
    backend = commands({"end_corrupted_jobs": True}, squeue=squeue, scancel="true")
    assert backend.end_jobs is not None
    assert list(backend.end_jobs("n0")) == ["36_3 (train) of ada", "40+1 (train) of bob"]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [line for line in calls if line.startswith("scancel")] == ["scancel 36_3", "scancel 40+1"]


@pytest.mark.parametrize("line", ["x|ada", "1 2|ada", "-1|ada", "1|", "1", "1_|ada", "1_[2-3]|ada", "1_2_3|ada"])
def test_a_list_of_jobs_that_cannot_be_read_ends_none(commands: Commands, tmp_path: Path, line: str) -> None:
    backend = commands({"end_corrupted_jobs": True}, squeue=write(line), scancel="true")
    assert backend.end_jobs is not None
    with pytest.raises(SchedulerDown):
        list(backend.end_jobs("n0"))
    assert "scancel" not in (tmp_path / "calls").read_text()


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
