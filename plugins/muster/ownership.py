"""Who owns the controller's files (the owner of MUSTER_HOME, even if root makes them), who may read its secrets, and
how a new file gets its name.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

from muster.errors import MusterError
from muster.settings import settings

STDIN = "-"
"""The file name that stands for standard input."""


def folder(path: Path) -> None:
    """Make a folder, and those above it that are missing. Raises OSError."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        give(each)


def give(path: Path) -> None:
    """Give a new file or folder to the controller's user; without root's rights it stays as it is. Raises OSError."""
    if os.geteuid() == 0 and settings().home.exists():
        owner = settings().home.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


def give_name(draft: Path, file: Path) -> None:
    """Give the draft the name of ``file``, never over another file; the draft may remain.

    Where there are hard links, the file is whole from the first moment. Where there are none, a process that dies in
    between leaves an empty file of that name.

    Raises FileExistsError, OSError.
    """
    try:
        os.link(draft, file)
    except FileExistsError:
        raise
    except OSError:  # as on some shares
        file.touch(mode=0o600, exist_ok=False)
        try:
            draft.replace(file)
        except OSError:
            file.unlink()
            raise


def foreign() -> str:
    """Returns the name of the controller's user if this process cannot make files for it, else "".

    A folder of root's, such as a volume that a group may write, names no user.
    """
    home = settings().home
    uid = home.stat().st_uid if home.exists() else 0
    if os.geteuid() in (0, uid) or uid == 0:
        return ""
    return _called(uid)


def me() -> str:
    """The user that this process runs as; with the documented command, not the one who called it."""
    return _called(os.geteuid())


def read(file: Path, most: int = -1) -> bytes:
    """The bytes of a file that a person named, up to ``most`` of them; "-" is standard input. Raises MusterError."""
    try:
        if str(file) == STDIN:
            if sys.stdin is None:  # a service manager may close it
                raise MusterError("standard input is closed: name a file")
            return sys.stdin.buffer.read(most)
        with file.open("rb") as opened:
            return opened.read(most)
    except OSError as error:
        why = f"{file} cannot be read by the user {me()}: {error.strerror}"
        if isinstance(error, PermissionError):
            why += f"; to read it as yourself, give {STDIN} in its place, and < {file} after the command"
        raise MusterError(why) from None


def _called(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container may run under an id without a name
        return f"#{uid}"


def closing(secret: Path) -> str:
    """Returns what closes a secret's file to others, "" if it is closed. Raises OSError.

    As PostgreSQL does for its server's key, the group may read a file of another user, such as a mounted secret.
    """
    found = secret.stat()
    if found.st_uid == os.geteuid():
        return f"chmod 600 {secret}" if found.st_mode & 0o077 else ""
    return "let its owner and this group alone read it" if found.st_mode & 0o037 else ""
