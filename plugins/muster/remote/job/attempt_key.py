"""The key of one attempt at a stage, which names its job on the node so that a retry finds it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import Self

_TEXT = re.compile(r"(\d+)\.(\d+)(?:r(\d+))?")


@dataclasses.dataclass(frozen=True)
class AttemptKey:
    """One attempt at a stage within a run.

    ``tries``: the task's ``max_tries``. Airflow's retries do not change it, a user's Clear raises it.
    ``measurement``: number of earlier whole measurements of these tries. ``repeat``: 0 for a whole measurement,
    N for the Nth repeat of the probes that the judge requested.

    Its text, as stored, is "2.1" or "2.1r3".
    """

    tries: int
    measurement: int = 0
    repeat: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the key of ``text``. Raises ValueError."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an attempt key such as 2.1 or 2.1r3")
        return cls(*(int(part or 0) for part in match.groups()))

    def __str__(self) -> str:
        repeat = f"r{self.repeat}" if self.repeat else ""
        return f"{self.tries}.{self.measurement}{repeat}"

    def repeated(self) -> AttemptKey:
        """Returns the key of the next repeat of some probes."""
        return dataclasses.replace(self, repeat=self.repeat + 1)

    @property
    def repeats(self) -> AttemptKey | None:
        """The key of the attempt that this one repeats; None for a whole measurement."""
        return dataclasses.replace(self, repeat=self.repeat - 1) if self.repeat else None

    def job_key(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Returns the name of the attempt's job on its node: 24 hexadecimal digits."""
        return hashlib.sha256(json.dumps([dag_id, run_id, task_id, str(self)]).encode()).hexdigest()[:24]
