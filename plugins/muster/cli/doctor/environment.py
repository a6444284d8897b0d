"""Variables of the environment: those that nothing reads, files that they name, an Airflow token that expires."""

from __future__ import annotations

import base64
import datetime
import json
import os
from collections.abc import Iterator

from muster.cli.controller.settings import unknown
from muster.cli.doctor.checks import Check, Mark, existing
from muster.cli.terminal import show
from muster.settings import Settings

SOON = datetime.timedelta(days=7)
"""A token that expires within this time is advice."""


def variables() -> Iterator[Check]:
    """No MUSTER_* variable is one that nothing reads, such as a misspelt one; silent if so."""
    if ignored := unknown():
        seen = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in ignored.items())
        yield Check(Mark.ADVICE, "settings", f"nothing reads {seen}", "correct or unset it; see `muster settings`")


def files(current: Settings) -> Iterator[Check]:
    """The archive can be written, and the files of MUSTER_TOPOLOGY and MUSTER_METRICS_TOKEN_FILE can be read; silent if
    so.
    """
    folder, wrong = current.archive_folder, []
    made = existing(folder)
    if not (made.is_dir() and os.access(made, os.W_OK | os.X_OK)):
        wrong.append(f"MUSTER_ARCHIVE={folder} cannot be written")
    for name, path in (
        ("MUSTER_TOPOLOGY", current.topology),
        ("MUSTER_METRICS_TOKEN_FILE", current.metrics_token_file),
    ):
        try:
            if path is not None and path.is_dir() and path == current.topology:
                os.listdir(path)  # a folder with a file for each node
            elif path is not None:
                path.open("rb").close()
        except OSError as error:
            wrong.append(f"{name}={path} cannot be read: {error.strerror}")
    if wrong:
        yield Check(Mark.MISSING, "files", "; ".join(wrong), "correct the path, or give this user its rights")


def token(current: Settings) -> Iterator[Check]:
    """A MUSTER_AIRFLOW_TOKEN has not expired; silent without one, or where a login renews it."""
    end = expiry(current.airflow_token.get_secret_value())
    if end is None or current.airflow_username:
        return
    left = end - datetime.datetime.now(datetime.UTC)
    mark = Mark.MISSING if left < datetime.timedelta() else Mark.ADVICE if left < SOON else Mark.OK
    seen = f"MUSTER_AIRFLOW_TOKEN {'expired' if mark is Mark.MISSING else 'expires'} at {show.when(end)}"
    fix = "" if mark is Mark.OK else "give a fresh one, or a login, whose tokens are renewed: MUSTER_AIRFLOW_USERNAME=…"
    yield Check(mark, "Airflow token", seen, fix)


def expiry(given: str) -> datetime.datetime | None:
    """When a JWT expires by its own claim, which is not verified; None for any other token and one without an end."""
    try:
        claims = given.split(".")[1]
        read = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        return datetime.datetime.fromtimestamp(read["exp"], datetime.UTC)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
