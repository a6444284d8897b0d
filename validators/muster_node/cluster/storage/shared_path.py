"""Rates of the shared path on one node alone and on all nodes at once: large files, small files, fio.

If the path fails meanwhile, all ranks get one sentence about the node on which it failed, and no other exception.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Callable

from muster_node.cluster.storage.checkpoint import PathTrouble, sentence_of
from muster_node.hardware.seam import RealClock
from muster_node.tools.fio import parse_fio
from muster_node.tools.output import BadOutput
from muster_node.workloads.common import MIB

if TYPE_CHECKING:
    from muster_node.cluster.rendezvous.rank import RankGroup
    from muster_node.cluster.storage.together import Together

_CLOCK = RealClock()
SMALL_FILES = 100
ONE, ALL = "one", "all"
FIO_S = 5
_FIO_GRACE_S = 60.0
FILES_S = 150.0
"""Seconds that the path has for files of one kind in any case: chosen here, more than fio may take twice."""
_CHUNK = 4 * MIB


@dataclasses.dataclass(frozen=True)
class Rate:
    """One figure of the path on this node. ``labels`` say which, and whether ``one`` node or ``all`` used it.

    ``value``: None if it was not measured; ``note`` says why.
    """

    metric: str
    value: float | None
    labels: dict[str, str]
    note: str = ""


def large_files(folder: pathlib.Path, mib: int) -> Iterator[tuple[str, float]]:
    """("write", GB/s) with all nodes on the path, then ("read", GB/s) bypassing this node's memory. Raises OSError."""
    file = folder / "large"
    chunk, chunks = os.urandom(_CHUNK), max(1, mib * MIB // _CHUNK)
    begun = _CLOCK.now()
    with file.open("wb") as out:
        for _ in range(chunks):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    yield "write", chunks * _CHUNK / max(_CLOCK.now() - begun, 1e-9) / 1e9
    with file.open("rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        begun = _CLOCK.now()
        while opened.read(_CHUNK):
            pass
    yield "read", chunks * _CHUNK / max(_CLOCK.now() - begun, 1e-9) / 1e9
    file.unlink()


def small_files(folder: pathlib.Path) -> Iterator[tuple[str, float]]:
    """Small files created and removed per second; stats would only test the client's cache. Raises OSError."""
    files = [folder / str(number) for number in range(SMALL_FILES)]
    acts: tuple[tuple[str, Callable[[pathlib.Path], object]], ...] = (
        ("create", lambda file: file.write_bytes(b"muster")), ("remove", os.unlink),
    )  # fmt: skip
    for name, act in acts:
        begun = _CLOCK.now()
        for file in files:
            act(file)
        yield name, len(files) / max(_CLOCK.now() - begun, 1e-9)


def fio(folder: pathlib.Path, mib: int) -> Iterator[tuple[str, float]]:
    """("write", GB/s) and ("read", GB/s) by fio in blocks of 1 MiB. Raises BadOutput, with what it printed last."""
    file = folder / "fio"
    for pattern in ("write", "read"):
        command = [
            "fio", "--output-format=json", "--name=muster", f"--filename={file}", f"--size={max(4, mib)}M",
            f"--rw={pattern}", "--bs=1M", "--ioengine=psync", "--invalidate=1", "--end_fsync=1", "--time_based",
            f"--runtime={FIO_S}", "--randrepeat=0",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=FIO_S + _FIO_GRACE_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BadOutput("timeout", f"did not end within {error.timeout:g} s") from error
        yield pattern, parse_fio(done.stdout, pattern).bytes_per_s / 1e9
    file.unlink()


class SharedPath:
    """Measures in a folder of each node below ``folder``, which is of this block alone and goes with it."""

    def __init__(
        self, group: RankGroup, path: pathlib.Path, folder: pathlib.Path, mib: int, together: Together, until: float
    ) -> None:
        """``until``: when files are given up, in seconds of the clock, but none before it had ``FILES_S``."""
        self._until = until
        self._group, self._path, self._mib, self._together = group, path, mib, together
        self._folder = folder / f"node-{group.block.name}"

    def measure(self) -> list[Rate]:
        """This node's figures; [] on all of its ranks but the first. Raises PathTrouble, on every rank."""
        group, found = self._group, []
        for nodes, here in ((ONE, group.rank == 0), (ALL, group.local == 0)):
            found += self._at_once(here, lambda nodes=nodes: self._files(nodes))  # type: ignore[misc]
        return found + self._at_once(group.local == 0, self._fio)

    def _at_once(self, here: bool, work: Callable[[], list[Rate]]) -> list[Rate]:
        found: list[Rate] = []

        def tried() -> str:
            if not here:
                return ""
            try:
                self._folder.mkdir(exist_ok=True)
                found.extend(work())
                self._folder.rmdir()
            except OSError as error:
                return sentence_of(self._path, error)
            return ""

        within_s = max(FILES_S, self._until - _CLOCK.now())
        answers = enumerate(self._together("files in the shared path", tried, within_s))
        troubles = {self._group.node_of(rank): sentence for rank, sentence in answers if sentence}
        if troubles:
            raise PathTrouble(troubles)
        return found

    def _files(self, nodes: str) -> list[Rate]:
        rates = [
            Rate("shared_rate", rate, {"direction": direction, "nodes": nodes})
            for direction, rate in large_files(self._folder, self._mib)
        ]
        return rates + [Rate("small_files", rate, {"op": op, "nodes": nodes}) for op, rate in small_files(self._folder)]

    def _fio(self) -> list[Rate]:
        if self._group.hardware.simulated:
            return [Rate("shared_fio", None, {}, "it is not run on simulated nodes")]
        if shutil.which("fio") is None:
            return [Rate("shared_fio", None, {}, "it is not installed")]
        try:
            return [Rate("shared_fio", rate, {"direction": pattern}) for pattern, rate in fio(self._folder, self._mib)]
        except BadOutput as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            return [Rate("shared_fio", None, {}, f"it {error}"[:400])]
