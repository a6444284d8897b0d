"""Checkpoints of a training through the path that all nodes share, by torch.distributed.checkpoint.

A path that is missing, full, read-only or not shared gives one sentence, not an exception: it is no node's hardware.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import hashlib
import math
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster_node.bounded import Hung, bounded
from muster_node.cluster.storage.replaceable import by_others
from muster_node.hardware.seam import RealClock
from muster_node.workloads.digest import digest

if TYPE_CHECKING:
    from muster_node.cluster.rendezvous.rank import RankGroup
    from muster_node.cluster.storage.together import Together
    from muster_node.cluster.training.trainer import Trainer

_CLOCK = RealClock()
ANSWER_S = 10.0
"""Seconds within which a small file is there where a path works at all: chosen here, ten times what NFS over a busy
network takes."""
TIDY_S = 60.0
"""Seconds that a block waits for the removal of checkpoints: chosen here."""
LEFT_S = 2 * 86_400.0
"""Age from which no block uses a folder any more: chosen here, far longer than any block takes."""
_FOLDER = re.compile(r"muster-(faults-)?[0-9a-f]{16}")
_MARGIN = 1.5
"""A further save or load has to fit even if it takes so much longer than the slowest so far: one that does not end in
time cannot be ended, and costs the block the whole phase. Chosen here."""
_ROOM = 1.5
"""Two checkpoints lie there for a moment: the last one goes once the next is whole."""


@dataclasses.dataclass
class Saved:
    """What was measured. Seconds are by the slowest rank. ``difference``: what came back changed on a rank of this
    node, "" if weights, moments and loss are equal on all its ranks; ``on``: the device that computed another loss from
    equal weights, else "node". ``own``: seconds of this rank's own saves. ``wanted``: the intended number of saves and
    loads."""

    saves: list[float]
    loads: list[float]
    size_bytes: int
    wanted: int
    difference: str = ""
    on: str = "node"
    own: list[float] = dataclasses.field(default_factory=list)


class PathTrouble(Exception):
    """The path cannot be used. ``found``: {node: one sentence} of the nodes on which it failed, equal on every rank."""

    def __init__(self, found: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in found.items()))
        self.found = dict(found)


def trouble_at(folder: pathlib.Path, need_bytes: int) -> str:
    """Why a checkpoint cannot be kept in ``folder`` here; "" if it can.

    A checkpoint holds pickles: a user who may replace its folder chooses what all nodes run.
    """
    try:
        if not folder.is_dir():
            return f"the shared path {folder} is not there on this node: mount it, or name another"
        if why := by_others(folder):
            return f"other users may replace what is in the shared path {folder}: {why}"
        probe = folder / f".probe-{os.uname().nodename}-{os.getpid()}"
        try:
            probe.write_bytes(b"muster")
        finally:
            probe.unlink(missing_ok=True)
        room = os.statvfs(folder)
        free = room.f_bavail * room.f_frsize
    except OSError as error:
        return sentence_of(folder, error)
    if free < need_bytes:
        need, left = need_bytes / 1e9, free / 1e9
        return f"the shared path {folder} is full: it has {left:.3g} GB left, and {need:.3g} GB are needed"
    return ""


def answers(folder: pathlib.Path, within_s: float = ANSWER_S) -> bool:
    """Whether this node can write and remove a small file in ``folder`` within so many seconds, or is refused."""
    return _within(within_s, lambda: trouble_at(folder, 0))


def trouble_soon(folder: pathlib.Path, within_s: float = ANSWER_S) -> str:
    """As ``trouble_at`` for a small file; a path that does not answer within so many seconds is trouble too."""
    try:
        return bounded("the shared path", lambda: trouble_at(folder, 0), within_s)
    except Hung:
        return f"the shared path {folder} does not answer within {within_s:.0f} s"


def sentence_of(folder: pathlib.Path, error: BaseException) -> str:
    """One sentence about an error of the path."""
    number = getattr(error, "errno", None)
    if number == errno.EROFS:
        return f"the shared path {folder} is read-only on this node: mount it for writing"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"the shared path {folder} is full"
    if number in (errno.EACCES, errno.EPERM):
        return f"the shared path {folder} cannot be written by this user ({os.getuid()})"
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"the shared path {folder} failed: {first[:200]}"


def folders_of(path: str, session: str) -> tuple[pathlib.Path, pathlib.Path]:
    """Where a block keeps its checkpoints in the shared path, and those of its run with faults.

    Neither name shows the session's secret or follows from the other, so no other user can make the second one first.
    """
    digests = (hashlib.sha256(use + b" " + session.encode()).hexdigest()[:16] for use in (b"shared path", b"faults"))
    return pathlib.Path(path) / f"muster-{next(digests)}", pathlib.Path(path) / f"muster-faults-{next(digests)}"


def tidy_up(path: str, session: str, within_s: float = TIDY_S) -> None:
    """Removes what a block left in the shared path, until ranks that still write there have ended."""
    folders, until = folders_of(path, session), _CLOCK.now() + within_s

    def remove() -> None:
        while any(map(os.path.exists, folders)) and _CLOCK.now() < until:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            _CLOCK.sleep(0.1)

    _within(within_s, remove)


def _within(limit_s: float, act: Callable[[], object]) -> bool:
    """Runs ``act`` but waits for its end no longer than ``limit_s``: the path may hang. Returns whether it ended."""
    try:
        bounded("the shared path", act, limit_s)
    except Hung:
        return False
    return True


def _remove_left(path: pathlib.Path) -> None:
    """Removes what blocks left there whose first node was lost. Folders in use have newer files."""
    with contextlib.suppress(OSError):
        with tempfile.TemporaryFile(dir=path) as new:  # by the server's clock, as the folders: the node's may be wrong
            now = os.fstat(new.fileno()).st_mtime
        for folder in path.glob("muster-*"):
            with contextlib.suppress(OSError):
                if _FOLDER.fullmatch(folder.name) and now - _newest(folder) > LEFT_S:
                    shutil.rmtree(folder, ignore_errors=True)


def _newest(folder: pathlib.Path) -> float:
    return max(each.stat().st_mtime for each in (folder, *folder.rglob("*")))


class Checkpoints:
    """Saves and loads of one training, in a folder of its own below the shared path."""

    def __init__(
        self, torch: Any, group: RankGroup, trainer: Trainer, path: str, session: str, together: Together
    ) -> None:
        self._torch, self._group, self._trainer, self._together = torch, group, trainer, together
        self._path = pathlib.Path(path)
        self.folder = folders_of(path, session)[0]
        self._need_bytes = 0

    def check(self, need_bytes: int) -> dict[str, str]:
        """{node: sentence} of the nodes that cannot use the path; the same on every rank."""
        group, self._need_bytes = self._group, need_bytes
        begun = self._together("the folder of the block", lambda: self._begin() if group.rank == 0 else "")

        def trouble() -> str:
            why = trouble_at(self._path, int(_ROOM * 2 * need_bytes)) or begun[group.rank]
            if not why and not any(begun) and not self._sees():
                return f"the path {self._path} is not shared: this node does not see what {group.names[0]} wrote there"
            return str(why)

        found: dict[str, str] = {}
        for rank, sentence in enumerate(self._together("the room in the path", trouble)):
            if sentence:
                found.setdefault(group.node_of(rank), sentence)
        return found

    def _begin(self) -> str:
        """Makes room and the folder; returns why the folder cannot be made, "" if it can."""
        _within(TIDY_S, lambda: _remove_left(self._path))
        try:
            self.folder.mkdir(parents=False, exist_ok=True)
        except OSError as error:
            return sentence_of(self._path, error)
        return ""

    def _sees(self) -> bool:
        until = _CLOCK.now() + 5.0  # what NFS has looked up stays in its cache for seconds
        while _CLOCK.now() < until:
            if self.folder.is_dir():
                return True
            _CLOCK.sleep(0.1)
        return False

    def run(self, times: int, limit_s: float) -> Saved:
        """Saves ``times`` times and loads as often, or less often where ``limit_s`` s do not take so many.

        Half of the limit is for saves. One save and one load are made in any case, and given up if they take longer.
        Raises PathTrouble, on every rank, if the path fails meanwhile.
        """
        saves, loads, own = list[float](), list[float](), list[float]()
        spent, limit_saves = list[float](), limit_s / 2
        before = self._trainer.loss_of(-1)
        wanted = self._digest()
        while len(saves) < times and _fits(spent, limit_saves):
            number = len(saves)
            save = functools.partial(self._save, number)
            taken, whole = self._timed(f"save {number}", save, limit_saves - sum(spent))
            saves.append(max(taken))
            own.append(taken[self._group.rank])
            spent.append(whole)
        last = self._target(len(saves) - 1)
        size = self._at_path("the size of a save", lambda: _bytes_of(last))[self._group.rank]
        difference, on = "", "node"
        spent, limit_loads = [], limit_s - sum(spent)
        while len(loads) < times and _fits(spent, limit_loads):
            taken, whole = self._timed(f"load {len(loads)}", lambda: self._load(last), limit_loads - sum(spent))
            loads.append(max(taken))
            spent.append(whole)
            if self._digest() != wanted:
                difference = f"load {len(loads) - 1} gave other weights or moments than were saved"
        after = self._trainer.loss_of(-1)
        if not difference and not same_loss(before, after):
            difference = f"the loss after the load differs by {abs(after - before):.2g} from the {before:.6g} before it"
            on = self._group.device.id
        # Each rank computes its own loss: where a GPU corrupts, the other nodes' are equal. With FSDP it does so from
        # all weights of its node: others that came back other than they were saved explain it.
        everywhere = enumerate(self._group.gather((difference, on)))
        wrong = [each for rank, each in everywhere if each[0] and self._group.node_of(rank) == self._group.block.name]
        difference, on = min(wrong, key=lambda each: each[1] != "node", default=("", "node"))
        return Saved(saves, loads, size, times, difference, on, own)

    def _timed(self, what: str, act: Callable[[], float], within_s: float) -> tuple[list[float], float]:
        """(what ``act`` returned in each rank, seconds that the slowest spent in all of it); raises as ``_at_path``."""

        def timed() -> list[float]:
            begun = _CLOCK.now()
            taken = act()
            return [taken, _CLOCK.now() - begun]

        answers = self._at_path(what, timed, within_s)
        return [taken for taken, _ in answers], max(whole for _, whole in answers)

    def _at_path(self, what: str, act: Callable[[], Any], within_s: float = math.inf) -> list[Any]:
        """What ``act`` returned in each rank. Raises PathTrouble on all ranks if it failed on any."""

        def tried() -> tuple[Any, dict[str, str]]:
            try:
                return act(), {}
            except _errors() as error:
                return None, self._whose(error)

        answers = self._together(what, tried, within_s)
        failed = {name: sentence for _, found in answers for name, sentence in found.items()}
        if failed:
            raise PathTrouble(failed)
        return [value for value, _ in answers]

    def _whose(self, error: BaseException) -> dict[str, str]:
        """By node, what failed: torch.distributed.checkpoint raises the errors of all ranks as one, on every rank."""
        failures = getattr(error, "failures", None)
        if not isinstance(failures, dict) or not failures:
            return {self._group.block.name: self._sentence_of(error)}
        found: dict[str, BaseException] = {}
        for rank, inner in failures.items():
            cause = inner[0] if isinstance(inner, tuple) else inner
            found.setdefault(self._group.node_of(rank), cause if isinstance(cause, BaseException) else error)
        own = self._group.block.name
        # Every rank has the failures of all, and all of all of them are too long a message: each sends its node's.
        name = own if own in found else next(iter(found))
        return {name: self._sentence_of(found[name])}

    def _sentence_of(self, error: BaseException) -> str:
        # PyTorch's writer of files reports a full disk by an error without a number.
        unnumbered = getattr(error, "errno", None) is None
        return (unnumbered and trouble_at(self._path, self._need_bytes)) or sentence_of(self._path, error)

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._trainer.model, self._trainer.optimizer)
        return {"model": model, "optimizer": optimizer}

    def _target(self, number: int) -> pathlib.Path:
        return self.folder / f"save-{number}"

    def _save(self, number: int) -> float:
        """Seconds of a save, which ends on all ranks at once; then removes the one before it."""
        import torch.distributed.checkpoint as dcp

        begun = _CLOCK.now()
        dcp.save(self._state(), checkpoint_id=str(self._target(number)))
        taken = _CLOCK.now() - begun
        if self._group.rank == 0:
            shutil.rmtree(self._target(number - 1), ignore_errors=True)
        return taken

    def _load(self, source: pathlib.Path) -> float:
        """Seconds of a load, after all values were changed."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        self._spoil()
        _forget(source)
        begun = _CLOCK.now()
        state = self._state()
        dcp.load(state, checkpoint_id=str(source))
        set_state_dict(
            self._trainer.model,
            self._trainer.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return _CLOCK.now() - begun

    def _tensors(self) -> list[Any]:
        torch = self._torch
        moments = [
            value
            for state in self._trainer.optimizer.state.values()
            for _, value in sorted(state.items())
            if torch.is_tensor(value) and value.dim()
        ]
        both = [*self._trainer.model.parameters(), *moments]
        return [each.to_local() if hasattr(each, "to_local") else each for each in both]

    def _digest(self) -> str:
        return digest(self._torch, self._tensors())

    def _spoil(self) -> None:
        """Changes every value, so that only a load can restore it."""
        with self._torch.no_grad():
            for tensor in self._tensors():
                tensor.add_(1.0)


def _errors() -> tuple[type[BaseException], ...]:
    """What a call may raise that fails; only PyTorch's own class derives from BaseException. Slow: imports PyTorch."""
    from torch.distributed.checkpoint import CheckpointException

    return Exception, CheckpointException


def _fits(taken: Sequence[float], limit_s: float) -> bool:
    """Whether one more fits into the limit, with a margin over the longest so far; the first one always does."""
    return not taken or sum(taken) + _MARGIN * max(taken) <= limit_s


def _bytes_of(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def same_loss(before: float, after: float) -> bool:
    """Whether two losses are equal to the last bit. Two NaN are: a corrupting rank makes them, not a checkpoint."""
    return before == after or (math.isnan(before) and math.isnan(after))


def _forget(folder: pathlib.Path) -> None:
    """Asks the kernel to drop its copies of the files, so that a load reads the path and not this node's memory."""
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError), file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
