"""Variables of the environment: those that nothing reads, and a token of Airflow's that expires."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterator

from muster.cli.doctor.checks import Check, Mark
from muster.cli.terminal import show
from muster.settings import Settings, unknown

SOON = datetime.timedelta(days=7)
"""A token that expires within this time is advice."""


def variables() -> Iterator[Check]:
    """No MUSTER_* variable is one that nothing reads, such as a misspelt one; silent if so."""
    if ignored := unknown():
        seen = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in ignored.items())
        yield Check(Mark.ADVICE, "settings", f"nothing reads {seen}", "correct or unset it; see `muster settings`")


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
