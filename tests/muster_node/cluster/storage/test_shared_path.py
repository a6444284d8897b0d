"""The path that nodes share, on real file systems: what it gives, and one sentence where it cannot be used."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import muster_node
from muster_node.cluster.storage import checkpoint, shared_path
from muster_node.cluster.storage.checkpoint import LEFT_S, Checkpoints, PathTrouble
from muster_node.cluster.storage.shared_path import SharedPath
from muster_node.hardware import open_hardware
from muster_node.probe import Context, resolve_params
from muster_node.probes import cluster_training
from muster_node.probes.cluster_training import ClusterTraining
from muster_node.tools.output import BadOutput

PACKAGES = Path(muster_node.__file__).parent.parent


class Group:
    """What SharedPath uses of a rank's group, for two nodes of one rank; the other node's answer is given."""

    def __init__(self, rank: int, other: str = "") -> None:
        self.limits = list[float]()
        self.rank, self.local, self.other = rank, 0, other
        self.block = self
        self.name = f"n{rank}"
        self.hardware = self
        self.simulated = True

    def gather(self, payload: Any = None) -> list[Any]:
        answers = [self.other, self.other]
        answers[self.rank] = payload
        return answers

    def node_of(self, rank: int) -> str:
        return f"n{rank}"

    def together(self, what: str, act: Callable[[], Any], within_s: float = 0.0) -> list[Any]:
        """In place of ``Together``."""
        self.limits.append(within_s)
        return self.gather(act())


def measured(group: Group, path: Path) -> list[shared_path.Rate]:
    return SharedPath(group, path, path, 1, group.together, until=time.monotonic() + 900.0).measure()  # type: ignore[arg-type]


def test_the_first_node_is_alone_and_then_all_are_at_it(tmp_path: Path) -> None:
    first, second = (measured(Group(rank), tmp_path)[:-1] for rank in (0, 1))
    assert {each.labels["nodes"] for each in first} == {"one", "all"}
    assert {each.labels["nodes"] for each in second} == {"all"}
    assert all(each.value and each.value > 0 for each in (*first, *second))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("left_s", "least", "most"), [(900.0, 0.0, 900.0), (-5.0, shared_path.FILES_S, 899.0)])
def test_files_have_what_is_left_of_the_paths_time(left_s: float, least: float, most: float, tmp_path: Path) -> None:
    group, clock = Group(0), shared_path._CLOCK
    SharedPath(group, tmp_path, tmp_path, 1, group.together, clock.now() + left_s).measure()  # type: ignore[arg-type]
    assert len(group.limits) == 3
    assert all(least <= each <= most for each in group.limits)


def test_trouble_of_another_node_ends_it_on_all_and_names_that_node(tmp_path: Path) -> None:
    with pytest.raises(PathTrouble) as trouble:
        measured(Group(0, other="the shared path is full"), tmp_path)
    assert trouble.value.found == {"n1": "the shared path is full"}, "nothing is charged to this node"


def test_fio_measures_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in prints fio 3's JSON as its documentation shows it, and leaves its file behind as fio does."""
    side = {"bw_bytes": 2_000_000_000, "iops": 2000.0}
    printed = {"jobs": [{"error": 0, "read": side, "write": side}]}
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "fio"
    tool.write_text(f"#!/bin/sh\nfor each; do case $each in --filename=*) : > ${{each#*=}};; esac; done\n"
                    f"cat <<'END'\n{json.dumps(printed)}\nEND\n")  # fmt: skip
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert dict(shared_path.fio(tmp_path, 4)) == {"write": 2.0, "read": 2.0}
    assert not (tmp_path / "fio").exists()


def test_fio_that_measures_nothing_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = BadOutput("timeout", "did not end within 65 s")

    def fails(folder: Path, mib: int) -> list[tuple[str, float]]:
        (folder / "fio").touch()
        raise ended

    def why(*, simulated: bool) -> str:
        group = Group(0)
        group.simulated = simulated
        (row,) = (each for each in measured(group, tmp_path) if each.metric == "shared_fio")
        assert row.value is None
        assert list(tmp_path.iterdir()) == []
        return row.note

    monkeypatch.setattr(shared_path, "fio", fails)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    reasons = {why(simulated=True), why(simulated=False)}
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    hung = why(simulated=False)
    assert str(ended) in hung
    assert len(reasons - {"", hung}) == 2


def test_a_path_answers_unless_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkpoint.answers(tmp_path)
    assert checkpoint.answers(tmp_path / "missing"), "a refusal is an answer"
    hangs = threading.Event()
    monkeypatch.setattr(checkpoint, "trouble_at", lambda folder, need: hangs.wait(60.0))
    assert not checkpoint.answers(tmp_path, 0.1)
    hangs.set()


def checkpoints(rank: int, path: Path, session: str = "ab" * 16) -> Checkpoints:
    group = Group(rank)
    return Checkpoints(None, group, None, str(path), session, group.together)  # type: ignore[arg-type]


def saved(folder: Path, age_s: float) -> Path:
    """A checkpoint whose newest file is so old."""
    (folder / "save-0").mkdir(parents=True)
    (folder / "save-0" / "__0_0.distcp").write_bytes(b"weights")
    then = time.time() - age_s
    for each in (folder / "save-0" / "__0_0.distcp", folder / "save-0", folder):
        os.utime(each, (then, then))
    return folder


def test_what_a_block_left_that_lost_its_first_node_is_removed_before_room_is_measured(tmp_path: Path) -> None:
    old = [saved(tmp_path / f"muster-{kind}{'0f' * 8}", LEFT_S + 60.0) for kind in ("", "faults-")]
    used, theirs = saved(tmp_path / f"muster-{'1e' * 8}", 3600.0), saved(tmp_path / "muster-results", 10 * LEFT_S)
    checkpoints(0, tmp_path).folder.mkdir()
    assert checkpoints(1, tmp_path).check(0) == {}
    assert all(each.exists() for each in old), "one rank removes it"
    assert checkpoints(0, tmp_path).check(0) == {}
    assert not any(each.exists() for each in old)
    assert used.exists()
    assert theirs.exists()


def test_a_path_that_is_full_of_what_blocks_left_is_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = saved(tmp_path / f"muster-{'0f' * 8}", LEFT_S + 60.0)
    monkeypatch.setattr(checkpoint, "trouble_at", lambda folder, need: "it is full" if old.exists() else "")
    assert checkpoints(0, tmp_path).check(0) == {}


def test_a_clock_that_is_wrong_removes_no_checkpoint_of_another_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = saved(tmp_path / f"muster-{'1e' * 8}", 60.0)
    monkeypatch.setattr(checkpoint._CLOCK, "wall", lambda: time.time() + 10 * LEFT_S)
    assert checkpoints(0, tmp_path).check(0) == {}
    assert used.exists()


def test_a_path_that_cannot_be_listed_costs_no_device_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: Path, pattern: str) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "glob", stale)
    assert checkpoints(0, tmp_path).check(0) == {}
    assert "not there" in checkpoints(0, tmp_path / "missing").check(0)["n0"]


@pytest.mark.parametrize(
    ("save_s", "load_s", "made"),
    [(1.0, 1.0, (5, 5)), (12.0, 5.0, (3, 5)), (18.0, 25.0, (2, 1)), (49.0, 51.0, (1, 1))],
)
def test_fewer_saves_and_loads_are_made_where_the_first_ones_take_long(
    save_s: float, load_s: float, made: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 s, half of which is for saves; each is given up before all would take longer.

    The last checkpoint goes, and the weights are changed, within an act and outside of what is measured.
    """
    left: list[tuple[str, float]] = []
    now, rest_s = [0.0], 1.0

    def taking(seconds: float) -> float:
        now[0] += seconds + rest_s
        return seconds

    class Alone(Group):
        def together(self, what: str, act: Callable[[], Any], within_s: float = 0.0) -> list[Any]:
            left.append((what, within_s))
            return [act()]

        def gather(self, payload: Any = None) -> list[Any]:
            return [payload]

    monkeypatch.setattr(Checkpoints, "_save", lambda self, number: taking(save_s))
    monkeypatch.setattr(Checkpoints, "_load", lambda self, source: taking(load_s))
    monkeypatch.setattr(checkpoint._CLOCK, "now", lambda: now[0])
    monkeypatch.setattr(Checkpoints, "_digest", lambda self: "the same")
    group, trainer = Alone(0), SimpleNamespace(loss_of=lambda number: 1.0)
    found = Checkpoints(None, group, trainer, str(tmp_path), "ab" * 16, group.together).run(5, 100.0)  # type: ignore[arg-type]
    assert (len(found.saves), len(found.loads)) == made
    assert found.difference == ""
    limits = dict(left)
    assert limits["save 0"] == 50.0
    assert limits["load 0"] == 100.0 - sum(each + rest_s for each in found.saves)
    for act, slowest_s, count in (("save", save_s + rest_s, made[0]), ("load", load_s + rest_s, made[1])):
        further = [limits[f"{act} {number}"] for number in range(1, count)]
        assert all(each >= 1.5 * slowest_s for each in further), "one that ran over would cost all"
    assert (set(found.saves), set(found.loads)) == ({save_s}, {load_s})


@pytest.mark.parametrize("bad", [0, 1])
def test_a_loss_that_differs_after_a_load_is_charged_to_the_node_that_computed_it(
    bad: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pair(Group):
        device = SimpleNamespace(id="gpu0")

        def gather(self, payload: Any = None) -> list[Any]:
            return [payload if rank == self.rank else other for rank in range(2)]

    monkeypatch.setattr(Checkpoints, "_save", lambda self, number: 1.0)
    monkeypatch.setattr(Checkpoints, "_load", lambda self, source: 1.0)
    monkeypatch.setattr(Checkpoints, "_digest", lambda self: "the same")
    found = []
    for rank in range(2):
        losses, other = iter([4.0, 4.5 if rank == bad else 4.0]), ["" if rank == bad else "the loss differs", "gpu0"]
        pair, trainer = Pair(rank), SimpleNamespace(loss_of=lambda number, losses=losses: next(losses))
        alone = lambda what, act, within_s=0.0: [act()] * 2  # noqa: E731
        run = Checkpoints(None, pair, trainer, str(tmp_path), "ab" * 16, alone).run(1, 100.0)  # type: ignore[arg-type]
        found.append((bool(run.difference), run.on))
    assert found == [(rank == bad, "gpu0" if rank == bad else "node") for rank in range(2)]


def test_the_removal_of_what_was_left_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(checkpoint, "TIDY_S", 0.1)
    monkeypatch.setattr(checkpoint, "_remove_left", lambda path: hangs.wait(5.0))
    begun = time.monotonic()
    assert checkpoints(0, tmp_path).check(0) == {}
    assert time.monotonic() - begun < 4.0
    hangs.set()


def test_what_a_rank_of_another_node_still_writes_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder, _), remove, late = checkpoint.folders_of(str(tmp_path), "0f" * 16), shutil.rmtree, [1.0, 2.0]

    def written_meanwhile(path: Path, ignore_errors: bool) -> None:
        remove(path, ignore_errors=ignore_errors)
        if late and path == folder:
            saved(folder, late.pop())

    saved(folder, 1.0)
    monkeypatch.setattr(shutil, "rmtree", written_meanwhile)
    checkpoint.tidy_up(str(tmp_path), "0f" * 16)
    assert not folder.exists()
    saved(folder, 1.0)
    monkeypatch.setattr(shutil, "rmtree", lambda path, ignore_errors: None)
    checkpoint.tidy_up(str(tmp_path), "0f" * 16, 0.3)
    assert folder.exists(), "a path that refuses is given up"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_block_that_loses_a_member_leaves_no_checkpoint(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks are killed while they save: the first node's own process removes what they wrote."""
    session = "0f" * 16
    mine, faults = (saved(folder, 1.0) for folder in checkpoint.folders_of(str(tmp_path), session))
    other = saved(tmp_path / f"muster-{'1e' * 8}", 1.0)

    def lost(*given: Any) -> None:
        raise RuntimeError("the other members gave this node up")

    monkeypatch.setattr(cluster_training, "join_block", lost)
    params = resolve_params(ClusterTraining, {"rank": rank, "session": session, "shared_path": str(tmp_path)})
    context = Context(open_hardware(), params, 1, tmp_path, lambda *a, **k: None, print)
    with pytest.raises(RuntimeError, match="gave this node up"):
        ClusterTraining().run(context)
    assert mine.exists() is faults.exists() is bool(rank)
    assert other.exists()


class Failed(Exception):
    """As torch.distributed.checkpoint raises it on all ranks: the errors of all."""

    failures = {rank: (OSError(f"error {rank}"), None) for rank in range(2)}  # noqa: RUF012


def test_each_rank_reports_the_failures_of_its_own_node_alone(tmp_path: Path) -> None:
    """All of them from all ranks of a large block are more than a message takes."""
    first, second = (checkpoints(rank, tmp_path)._whose(Failed()) for rank in (0, 1))
    assert (list(first), list(second)) == (["n0"], ["n1"])
    assert "error 1" in second["n1"]
    third = checkpoints(2, tmp_path)._whose(Failed())
    assert len(third) == 1, "the save failed for it too"


SCRIPT = """
import pathlib, sys
from muster_node.cluster.storage.checkpoint import trouble_at, sentence_of
from muster_node.cluster.storage.shared_path import large_files
folder = pathlib.Path(sys.argv[1])
print(trouble_at(folder, int(sys.argv[2])))
try:
    print(list(large_files(folder, 32)))
except OSError as error:
    print(sentence_of(folder, error))
"""


SAVE = """
import pathlib, sys
from types import SimpleNamespace
import torch
import torch.distributed.checkpoint as dcp
from muster_node.cluster.storage.checkpoint import Checkpoints, PathTrouble
group = SimpleNamespace(rank=0, names=("n0",), block=SimpleNamespace(name="n0"), node_of=lambda rank: "n0")
kept = Checkpoints(torch, group, None, sys.argv[1], "ab" * 16, lambda what, act, within_s=0.0: [act()])
print(kept.check(1 << 20))
try:
    kept._at_path("save 0", lambda: dcp.save({"a": torch.ones(1 << 23)}, checkpoint_id=str(kept.folder / "save-0")))
except PathTrouble as trouble:
    print(trouble.found)
"""


def in_own_mounts(script: str) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def printed_on(options: str, script: str, tmp_path: Path, *given: int) -> list[str]:
    """The two lines that a script prints about a small file system of these options."""
    if not shutil.which("unshare") or in_own_mounts("mount -t tmpfs none /mnt").returncode:
        pytest.skip("this system does not allow mounting a small file system for a test (unshare --user --mount)")
    (tmp_path / "shared").mkdir()
    (tmp_path / "script.py").write_text(script)
    done = in_own_mounts(
        f"mount -t tmpfs -o {options} none {tmp_path}/shared\n"
        f"PYTHONPATH={PACKAGES} {sys.executable} {tmp_path}/script.py {tmp_path}/shared {' '.join(map(str, given))}"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:2]


@pytest.mark.parametrize(
    ("options", "need", "before", "during"),
    [("size=16m", 0, "", "is full"), ("size=16m", 1 << 30, "is full", "is full"),
     ("size=16m,ro", 0, "is read-only", "is read-only")],
)  # fmt: skip
def test_a_file_system_that_is_full_or_read_only_is_one_sentence(
    options: str, need: int, before: str, during: str, tmp_path: Path
) -> None:
    first, second = printed_on(options, SCRIPT, tmp_path, need)
    assert before in first
    assert bool(first) is bool(before)
    assert during in second


@pytest.mark.needs_torch
def test_a_path_that_fills_up_while_pytorch_saves_is_one_sentence(tmp_path: Path) -> None:
    assert "is full" in printed_on("size=16m", SAVE, tmp_path)[1]
