"""The job directory and the node-wide work directory: paths, atomic writes, the lock, what is left for a full disk."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import queue
import re
import shutil
import tempfile
import threading
import time
from typing import TextIO

RESERVE_BYTES = 6 * 1024 * 1024
"""Held free for the result (5 MB at most) while the job runs, so that a disk filled meanwhile does not cost it."""

PROGRESS_LINES_MAX = 20_000
"""Progress lines written of one job; further ones are dropped, with one note."""

PROGRESS_TEXT_MAX = 500


def work_dir() -> pathlib.Path:
    """$MUSTER_WORK, else ~/.muster: the node-wide state (fence, running job, agents, jobs)."""
    given = os.environ.get("MUSTER_WORK")
    return pathlib.Path(given) if given else pathlib.Path(os.path.expanduser("~")) / ".muster"


_SHARED_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "ceph",
    "beegfs",
    "glusterfs",
    "wekafs",
    "afs",
    "pvfs2",
    "gfs2",
    "ocfs2",
    "fuse.",
    "9p",
    "virtiofs",
)
"""Beginnings of the names of file systems that several machines mount, as /proc/self/mountinfo has them."""

_OVERLAYS = 2  # as many as Linux stacks (FILESYSTEM_MAX_STACK_DEPTH)


def fence_dir(node: str) -> pathlib.Path:
    """The directory of a machine's fence and running job: $MUSTER_FENCE, else the work directory.

    Where the work directory lies on a file system that machines share (a home directory on NFS), each node has a
    directory of its own in it: another machine's token or running job must not refuse or end this one's.
    """
    given = os.environ.get("MUSTER_FENCE")
    if given:
        return pathlib.Path(given)
    work = work_dir()
    return work / "nodes" / safe_name(node) if is_shared(file_system(work)) else work


def is_shared(kind: str) -> bool:
    """Whether several machines may mount a file system of this type. "fuseblk" is a disk of this one: NTFS or exFAT."""
    return kind == "fuse" or kind.startswith(_SHARED_FILE_SYSTEMS)


def file_system(path: pathlib.Path) -> str:
    """Type of the file system that ``path`` lies on ("ext4", "nfs4"), "" where it is unknown."""
    try:
        mounts = pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return file_system_of(os.path.realpath(path), mounts)


def file_system_of(path: str, mountinfo: str) -> str:
    """Type of the file system that ``path`` lies on ("ext4", "nfs4"), "" if ``mountinfo`` (proc(5)) has none.

    Of an overlay it is that of the folder which takes its writes, where that can be seen from here; of a disk in memory
    it is the disk's name ("ram0", "zram0").
    """
    kind, source, options = _mount_of(path, mountinfo)
    for _ in range(_OVERLAYS):
        upper = re.search(r"(?:^|,)upperdir=([^,]+)", options)
        if kind == "overlay" and upper:
            inner, source, options = _mount_of(upper[1], mountinfo)
            kind = inner or kind
    return source[len("/dev/") :] if re.fullmatch(r"/dev/z?ram[0-9]+", source) else kind


def _mount_of(path: str, mountinfo: str) -> tuple[str, str, str]:
    """Type, source and options of the mount that holds ``path``; "" each if there is none."""
    longest, found = -1, ("", "", "")
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ") if len(fields.split()) > 4 else ""
        inside = point and (path + "/").startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # of mounts on one point the last hides the others
            kind, source, options = (*rest.split(" "), "", "", "")[:3]
            longest, found = len(point), (kind, source, options)
    return found


def atomic_write(path: pathlib.Path, data: bytes) -> None:
    """Writes ``path`` whole or not at all, and durably. Raises OSError (then nothing of it is left behind)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # some file systems refuse to sync a directory; the rename itself is done
        directory = os.open(str(path.parent), os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def make_folder(path: pathlib.Path, mode: int = 0o777) -> None:
    """Makes ``path`` and what is missing above it. Raises OSError.

    What root makes belongs to the owner of the folder above: in a container of docker the node side is root, and the
    SSH user could not remove what root's folders hold.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(mode=mode, exist_ok=True)
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            above = path.parent.stat()
            os.chown(path, above.st_uid, above.st_gid, follow_symlinks=False)


class JobDir:
    """One job's directory: plan.json, result.json, progress.jsonl, telemetry.jsonl.gz, agent.pid, logs/, scratch/."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path.absolute()
        self.plan = self.path / "plan.json"
        self.result = self.path / "result.json"
        self.progress = self.path / "progress.jsonl"
        self.telemetry = self.path / "telemetry.jsonl.gz"
        self.pid = self.path / "agent.pid"
        self.logs = self.path / "logs"
        self.scratch = self.path / "scratch"
        self._reserve = self.path / ".reserve"
        self._lock_fd: int | None = None
        self.notes: list[str] = []

    def open(self) -> bool:
        """Creates and locks the directory, removes an earlier job's result; False if a live agent holds it.

        Raises OSError where the directory cannot be made or locked.
        """
        make_folder(self.path)
        fd = os.open(str(self.pid), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:  # such as of a file system without locks
            os.close(fd)
            raise
        self._lock_fd = fd
        for stale in (self.result, self.progress, self.telemetry):
            with contextlib.suppress(FileNotFoundError):
                stale.unlink()
        self._remove(self.scratch)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
            self._take_reserve()
            make_folder(self.logs)
            make_folder(self.scratch)
        except OSError as error:
            self.notes.append(f"the job directory could not be prepared in full: {error}")
        return True

    def _take_reserve(self) -> None:
        try:
            with open(self._reserve, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            with contextlib.suppress(OSError):
                self._reserve.unlink()
            raise

    def scratch_for(self, index: int, probe: str) -> pathlib.Path:
        """A fresh directory for one probe. Raises OSError."""
        path = self.scratch / f"{index:02d}_{safe_name(probe)}"
        make_folder(path)
        return path

    def drop_scratch(self, path: pathlib.Path) -> None:
        """Removes a probe's directory; what cannot be removed is noted."""
        self._remove(path)
        if path.exists():
            self.notes.append(f"scratch directory {path.name} could not be removed")

    def write_result(self, data: bytes) -> None:
        """Frees the reserve and writes result.json atomically. Raises OSError if it cannot be written even so."""
        with contextlib.suppress(OSError):
            self._reserve.unlink()
        atomic_write(self.result, data)

    def drop_evidence(self) -> None:
        """Removes telemetry and logs: the last resort for a result on a full disk."""
        for path in (self.telemetry, self.progress):
            with contextlib.suppress(OSError):
                path.unlink()
        self._remove(self.logs)

    def close(self) -> None:
        """Removes the files that only the running job needed and releases the lock."""
        self._remove(self.scratch)
        with contextlib.suppress(OSError):
            self._reserve.unlink()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _remove(self, path: pathlib.Path) -> None:
        shutil.rmtree(str(path), ignore_errors=True)


class Console:
    """Standard output that never blocks the agent: if its reader stops, lines are dropped and the run goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=1000)
        self._thread = threading.Thread(target=self._write, name="console", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Prints one line, soon, or drops it."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line)

    def close(self) -> None:
        """Waits half a second at most for what has not been printed yet."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(0.5)

    def _write(self) -> None:
        try:
            for line in iter(self._lines.get, None):
                self._stream.write(line + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            return  # no reader is left: progress.jsonl has all lines


class Progress:
    """Progress for people: lines in progress.jsonl {"t", "probe", "text"} and on the console."""

    def __init__(self, path: pathlib.Path, console: Console) -> None:
        self._console = console
        self._lines = 0
        self._file: TextIO | None = None
        self.notes: list[str] = []
        try:
            self._file = open(path, "w", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed by close()
        except OSError as error:
            self.notes.append(f"progress.jsonl cannot be written: {error}")

    def write(self, probe: str, text: str) -> None:
        """One line, such as "12:01:03 exact_gemm: cpu1 bf16 40/200 checked"; control characters are taken out."""
        self._lines += 1
        if self._lines > PROGRESS_LINES_MAX:
            if self._lines == PROGRESS_LINES_MAX + 1:
                self.notes.append(f"progress: lines after the first {PROGRESS_LINES_MAX} were dropped")
            return
        now = time.time()
        clean = " ".join("".join(c if c.isprintable() else " " for c in text[:PROGRESS_TEXT_MAX]).split())
        self._console.write("{} {}: {}".format(time.strftime("%H:%M:%S", time.localtime(now)), probe, clean))
        if self._file is None:
            return
        row: dict[str, object] = {"t": round(now, 2), "probe": probe, "text": clean}
        try:
            self._file.write(json.dumps(row) + "\n")
        except OSError as error:
            self.notes.append(f"progress.jsonl was cut short: {error}")
            self._file = None

    def close(self) -> None:
        """Ends the file; the console stays."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def safe_name(text: str) -> str:
    """``text`` as part of a file name: nothing but letters, digits, "_" and "-", 60 at most."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in text)[:60] or "_"


def writable(path: pathlib.Path) -> bool:
    """Whether files can be made and locked in ``path`` (which is created if missing)."""
    try:
        make_folder(path)
        with tempfile.TemporaryFile(dir=str(path)) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False
