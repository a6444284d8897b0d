"""The share of the wall clock's time that CPU loads got, and who had the rest, for probes whose rates are by CPU
time."""

from __future__ import annotations

from muster_node.hardware.seam import CpuTime
from muster_node.probe import Context, Metric

BRIEF_S = 60.0
"""Timed work of one CPU below which a share says little: one cron job takes as much."""

METRICS = {
    "cpu_share": Metric("%", "CPU time of the timed work by its time on the wall clock"),
    "cpu_others": Metric("%", "time of the timed work that other processes had, at most"),
    "cpu_stolen": Metric("%", "time of the timed work that the hypervisor gave to other machines, at most"),
    "cpu_throttled": Metric("%", "time of the timed work that a control group's quota held it back"),
    "cpu_unexplained": Metric("%", "time of the timed work in which the CPU did not run it, for no known reason"),
    "cpu_quota": Metric("%", "quota of the control group by the CPUs that were loaded; 100 without one"),
}
"""What such a probe declares."""


def emit_cpu_shares(context: Context) -> None:
    """Reports the shares of all loads on CPUs so far; nothing if there was none.

    The label ``load`` is "brief" or "sustained". Causes are upper bounds: what others had while the load paused is
    counted too, up to what the load lost; so ``cpu_unexplained`` is a lower bound.
    """
    time = context.hardware.cpu_time()
    if time is None:
        return
    walls = {device: wall for device, wall in time.wall_s.items() if wall > 0}
    load = "sustained" if sum(walls.values()) / len(walls) >= BRIEF_S else "brief"
    for device, wall in walls.items():
        context.emit("cpu_share", device, value=_percent(time.cpu_s[device], wall), labels={"load": load})
    for metric, (value, note) in _causes(time, sum(walls.values())).items():
        context.emit(metric, "node", value=value, labels={"load": load}, samples=len(walls), note=note)


def _causes(time: CpuTime, wall: float) -> dict[str, tuple[float | None, str]]:
    lost = max(0.0, wall - sum(time.cpu_s.values()))
    known = {"cpu_others": time.others_s, "cpu_stolen": time.stolen_s}
    found: dict[str, tuple[float | None, str]] = {
        metric: (None, "/proc/stat does not list these CPUs")
        if seconds is None
        else (_percent(min(lost, seconds), wall), "")
        for metric, seconds in known.items()
    }
    periods = f"{time.throttled_periods} of {time.periods} periods" if time.periods else ""
    if time.held_s is None:
        found["cpu_throttled"] = (None, "no control group here counts CPU time")
    else:
        # A group that is throttled holds each of its CPUs' load back only where there is any: the periods tell more.
        share = max(_percent(min(lost, time.held_s), wall), _by_periods(time, lost, wall))
        found["cpu_throttled"] = (share, periods)
    quota = 100.0 if time.quota is None else min(100.0, 100.0 * time.quota / time.cpus)
    found["cpu_quota"] = (quota, "no quota" if time.quota is None else f"{time.quota:g} of {time.cpus} CPUs")
    if time.others_s is None or time.stolen_s is None:
        found["cpu_unexplained"] = (None, "the causes are not known")
    else:
        throttled = (found["cpu_throttled"][0] or 0.0) * wall / 100.0
        rest = max(0.0, lost - time.others_s - time.stolen_s - throttled)
        found["cpu_unexplained"] = (_percent(rest, wall), "")
    return found


def _by_periods(time: CpuTime, lost: float, wall: float) -> float:
    """If most periods were throttled, the lost time that has no other cause, in % of ``wall``; else 0."""
    if not time.periods or 2 * time.throttled_periods < time.periods:
        return 0.0
    return _percent(max(0.0, lost - (time.others_s or 0.0) - (time.stolen_s or 0.0)), wall)


def _percent(part: float, whole: float) -> float:
    return min(100.0, 100.0 * part / whole)
