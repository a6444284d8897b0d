"""Clocks, limits and modes of GPUs: every job restores them at its end, however it ends.

Muster's own probes change no settings. Vendors' diagnostics do, and leave theirs behind if they are killed. A file next
to the jobs keeps the settings from before the load until they are restored, so that the next job on the node can
restore them if the agent is killed as well. NVML does not report locked clocks, so these are not restored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Iterable
from typing import Callable

from muster_node.agent.jobdir import atomic_write
from muster_node.bounded import bounded
from muster_node.hardware.seam import Fact, Hardware
from muster_node.workloads.under_load.settings import Settings, changes, settings

FILE = "gpu-settings.json"
LEFT_BEHIND_MAX_S = 24 * 3600.0
"""For how long the settings of a killed job are restored; later ones may have been set on purpose."""

LIMIT_S, HURRIED_S = 30.0, 1.2
"""How long all of it may take, and how long where the job has to end."""


def restore(hardware: Hardware, before: Settings, after: Settings) -> list[str]:
    """Restores what differs from before; one sentence for each setting with the outcome."""
    notes = []
    for key, words in changes(before, after).items():
        device, name, _ = key
        why_not = hardware.restore_setting(
            device, name, [fact for other, fact in before.items() if other[:2] == key[:2]]
        )
        notes.append("{} {}; {}".format(device, words, f"not restored: {why_not}" if why_not else "restored"))
    return notes


class SavedSettings:
    """What was set on a machine's GPUs before a job, kept in ``folder`` until it is restored. Nothing here raises."""

    def __init__(self, folder: pathlib.Path, hardware: Hardware) -> None:
        self._file, self._hardware = folder / FILE, hardware
        self._before: Settings = {}

    def begin(self, facts: Iterable[Fact], stop: Callable[[], str | None] = lambda: None) -> list[str]:
        """Restores the settings that a killed job left, then saves the current ones; returns notes."""
        found = settings(facts)
        left = {key: fact for key, fact in self._left_behind().items() if key in found}
        notes = _bounded_notes(lambda: restore(self._hardware, left, found), LIMIT_S, stop)
        self._before = {**found, **left}
        kept = self._keep() if self._before else []
        return [f"left by a killed job: {each}" for each in notes] + kept

    def end(self, limit_s: float = LIMIT_S) -> list[str]:
        """Restores the settings that changed since the job began; returns notes.

        What takes longer than ``limit_s`` seconds is left to the next job.
        """
        return _bounded_notes(self._end, limit_s) if self._before else []

    def _end(self) -> list[str]:
        notes = restore(self._hardware, self._before, settings(self._hardware.inventory()))
        with contextlib.suppress(OSError):
            self._file.unlink()
        return notes

    def _keep(self) -> list[str]:
        content = {
            "boot_id": self._hardware.boot_id(),
            "at": self._hardware.clock.now(),  # not the wall clock, which may be set back
            "facts": [dataclasses.asdict(fact) for fact in self._before.values()],
        }
        try:
            atomic_write(self._file, json.dumps(content).encode())
        except OSError as error:
            return [f"settings of GPUs would not be restored if this job were killed: {error}"]
        return []

    def _left_behind(self) -> Settings:
        """The settings that an unfinished job of this boot left in the file; empty if there are none, or old ones."""
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            age = self._hardware.clock.now() - float(content["at"])
            if content["boot_id"] != self._hardware.boot_id() or not 0 <= age <= LEFT_BEHIND_MAX_S:
                return {}
            return settings(Fact(**fact) for fact in content["facts"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _bounded_notes(
    work: Callable[[], list[str]], limit_s: float, stop: Callable[[], str | None] = lambda: None
) -> list[str]:
    try:
        return bounded("restoring settings", work, limit_s, stop)
    except Exception as error:  # a driver that hangs or a lost GPU must not lose the measurements
        return [f"settings of GPUs were not compared with those before: {error}"]
