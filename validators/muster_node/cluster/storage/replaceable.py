"""Whether other users may put another folder in the place of one: the rule of the work folder, where jobs run."""

from __future__ import annotations

import contextlib
import grp
import os
import pathlib
import pwd
import stat

from muster_node.agent.jobdir import work_dir

UID_MAP, OVERFLOW_UID = pathlib.Path("/proc/self/uid_map"), pathlib.Path("/proc/sys/kernel/overflowuid")


def by_others(folder: pathlib.Path) -> str:
    """Why other users may replace what is in ``folder``, and what to do; "" if they may not.

    The folder and all above it must belong to root or this user; others may write only in sticky ones. A group may
    write if it has the login's name. Raises OSError.
    """
    login = {os.geteuid(), *_owner_of_work()}
    for each in (folder.resolve(), *folder.resolve().parents):
        found = each.stat()
        if found.st_uid not in login | {0} | _hidden_root():
            ours = " or to ".join(["root", *(f"the user {uid}" for uid in sorted(login - {0}))])
            return f"{each} belongs to the user {found.st_uid}: give it to {ours}"
        shared = 0o002 if _is_own(found.st_gid, login) else 0o022
        if found.st_mode & shared and not found.st_mode & stat.S_ISVTX:
            return f"they may write in {each}: chmod go-w {each}, or chmod +t"
    return ""


def _owner_of_work() -> set[int]:
    """The login, if it is not the user that runs this process, as in a container of docker."""
    with contextlib.suppress(OSError):
        return {work_dir().stat().st_uid}
    return set()


def _is_own(group: int, login: set[int]) -> bool:
    with contextlib.suppress(KeyError):
        name = grp.getgrgid(group).gr_name
        for each in login:
            with contextlib.suppress(KeyError):
                if pwd.getpwuid(each).pw_name == name:
                    return True
    return False


def _hidden_root() -> set[int]:
    """The user id that root has in a container with its own users (rootless podman, enroot). All users that the
    container does not know share this id and cannot be distinguished from root."""
    with contextlib.suppress(OSError, ValueError):
        if UID_MAP.read_text().split() != ["0", "0", str(2**32 - 1)]:
            return {int(OVERFLOW_UID.read_text())}
    return set()
