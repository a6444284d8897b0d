"""A simulated year of a fleet between tests, judged by the shipped policy with the controller's own rules.

SIMULATED. The rates of harmless events are assumptions of this bench, chosen here and not measured; they are meant to
be high. Sweeps are every ten minutes; between events nothing happens, so only sweeps that show something are computed.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
from collections.abc import Iterator

import numpy as np

from muster.judging import policies
from muster.model.health import Track
from muster.rules.service import health as rules
from muster_criteria.health.policy import Facts, HealthAction, action_on

SWEEP_S = 600.0
DAY_S = 86400.0
T0 = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
POLICY = policies.health()


@dataclasses.dataclass(frozen=True)
class Kind:
    """Something that happens. ``a_day``: of one node; ``sweeps``: for how many a state lasts, (least, most), () for an
    event; ``again``: the chance that a state returns before it was good for the stable time; ``rate``: events an hour.
    """

    check: str
    a_day: float = 0.0
    severity: str = ""
    sweeps: tuple[int, int] | tuple[()] = ()
    again: float = 0.0
    rate: float | None = None
    after_boot: bool = False


HARMLESS = (
    Kind("xid/13", 0.1, "IGNORE"),
    Kind("xid/31", 0.1, "MONITOR"),
    Kind("xid/43", 0.1, "IGNORE"),
    Kind("kernel/aer-corrected", 0.05, "MONITOR"),
    Kind("kernel/out-of-memory", 0.1, "MONITOR"),
    Kind("kernel/unknown", 0.2, "MONITOR"),
    Kind("ecc_corrected", 0.02, rate=60.0),
    Kind("edac_corrected", 0.02, rate=30.0),
    Kind("hung/counters", 0.005),
    Kind("unreachable", 0.01, sweeps=(1, 3), again=0.2),
    Kind("port_down", 0.005, sweeps=(1, 1), again=0.2),
    Kind("service/nvidia-fabricmanager", 0.002, sweeps=(1, 1)),
    Kind("throttled/hw_thermal", 0.002, sweeps=(1, 6), again=0.3),
    Kind("clock_unsynchronised", 0.005, sweeps=(1, 36)),
    Kind("disk_full", 0.002, sweeps=(1, 5)),
    Kind("port_down", 0.02, sweeps=(1, 1), after_boot=True),
    Kind("service/nvidia-fabricmanager", 0.02, sweeps=(1, 1), after_boot=True),
)
FAULTS = (
    Kind("gpu_lost", sweeps=(200, 200)),
    Kind("gpu_missing", sweeps=(200, 200)),
    Kind("xid/79", severity="REBOOT"),
    Kind("xid/48", severity="RESET"),
    Kind("xid/64", severity="ISOLATE"),
    Kind("kernel/machine-check", severity="ISOLATE"),
    Kind("kernel/disk-failed", severity="ISOLATE"),
    Kind("row_remap_failed", sweeps=(200, 200)),
    Kind("row_remap_pending", sweeps=(200, 200)),
    Kind("ecc_uncorrected", rate=6.0),
    Kind("ecc_corrected", rate=17_657 * 3600.0),
    Kind("port_down", sweeps=(200, 200)),
    Kind("port_down", sweeps=(1, 1), again=0.95),
    Kind("throttled/hw_thermal", sweeps=(200, 200)),
    Kind("unreachable", sweeps=(200, 200)),
    Kind("job_crash"),
    Kind("nvme_state", sweeps=(200, 200)),
    Kind("kernel/unknown", severity="MONITOR"),
)
"""Real faults, each once: the last two are those that the shipped table only notes."""


@functools.lru_cache(maxsize=100_000)
def decided(facts: Facts) -> HealthAction:
    """The shipped policy's decision."""
    return action_on(facts, POLICY)


def course(kind: Kind, sweeps: int, rng: np.random.Generator) -> Iterator[HealthAction]:
    """The action after each sweep of one state's course, to its end."""
    track: Track | None = None
    number, uptime = 0, 0.0 if kind.after_boot else None
    left = sweeps
    while True:
        bad = left > 0
        at = T0 + datetime.timedelta(seconds=number * SWEEP_S)
        track = rules.step(track, bad, at, POLICY, None if uptime is None else uptime + number * SWEEP_S)
        if track is not None:
            yield decided(Facts(kind.check, kind.severity, number + 1, track.down_s, track.flaps))
        if not bad and (track is None or track.over):
            return
        left -= 1
        number += 1
        if left == -2 and rng.random() < kind.again:
            left = sweeps


def false_alarms(nodes: int, days: int, rng: np.random.Generator) -> tuple[int, dict[str, int]]:
    """(node-days of healthy nodes on which more than a note followed, {check: how many of these})."""
    boots = rng.poisson(0.02 * days, nodes)
    flagged: set[tuple[int, int]] = set()
    by_check: collections.Counter[str] = collections.Counter()
    for kind in HARMLESS:
        counts: collections.Counter[tuple[int, int]] = collections.Counter()
        number = rng.poisson(kind.a_day * nodes * days)
        where, when = rng.integers(0, nodes, number), np.sort(rng.random(number) * days)
        for node, day in zip(where.tolist(), when.tolist(), strict=True):
            if kind.sweeps:
                least, most = kind.sweeps
                worst = max(course(kind, int(rng.integers(least, most + 1)), rng), key=_rank, default=HealthAction.NOTE)
            else:
                boot = node, int(day / days * (boots[node] + 1))
                counts[boot] += 1
                worst = decided(Facts(kind.check, kind.severity, counts[boot], rate=kind.rate))
            if worst is not HealthAction.NOTE and (node, int(day)) not in flagged:
                flagged.add((node, int(day)))
                by_check[kind.check] += 1
    return len(flagged), dict(by_check)


def detected(each: int, rng: np.random.Generator) -> dict[str, float]:
    """{fault: share of ``each`` cases in which more than a note follows}."""
    found: dict[str, float] = {}
    for number, kind in enumerate(FAULTS):
        hits = 0
        for _ in range(each):
            if kind.sweeps:
                hits += any(action is not HealthAction.NOTE for action in course(kind, kind.sweeps[1], rng))
            else:
                hits += decided(Facts(kind.check, kind.severity, 1, rate=kind.rate)) is not HealthAction.NOTE
        found[f"{number} {kind.check}{' flapping' if kind.again else ''}"] = hits / each
    return found


def _rank(action: HealthAction) -> int:
    return action.rank
