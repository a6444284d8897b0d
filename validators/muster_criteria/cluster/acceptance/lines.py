"""The lines of a block's training table: performance with its gates, checkpoints, and the run with faults."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from muster_criteria.cluster.acceptance.values import Comparisons, Line, Member
from muster_criteria.cluster.model import SAVED, TRAINING
from muster_criteria.model import Observation
from muster_criteria.words import figure, listed, number


class Figures:
    """Looks up figures of a block's training by metric and labels. The block's own figures are the same on each
    member."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.simulated = any(member.simulated for member in members)

    def rows(self, metric: str, device: str = "node", **labels: str) -> list[tuple[str, Observation]]:
        """(member, row) for each row with a value. ``device`` "" matches every device except "node"."""
        return [
            (member.name, each) for member in self.members for each in member.observations
            if (each.probe, each.metric) == (TRAINING, metric) and each.value is not None
            and (each.device == device if device else each.device != "node")
            and labels.items() <= dict(each.labels).items()
        ]  # fmt: skip

    def values(self, metric: str, device: str = "node", **labels: str) -> list[float]:
        """The values of ``rows``."""
        return [each.value for _, each in self.rows(metric, device, **labels) if each.value is not None]

    def value(self, metric: str, **labels: str) -> float | None:
        """The median over members; None if no member has a value."""
        found = self.values(metric, **labels)
        return statistics.median(found) if found else None

    def text(self, metric: str) -> str:
        """The first text of a metric, "" if there is none."""
        return next(
            (each.text for member in self.members for each in member.observations
             if each.metric == metric and each.text), ""
        )  # fmt: skip

    def notes(self, metric: str) -> list[str]:
        """Notes of the "node" rows whose value is missing or 0."""
        return [
            each.note for member in self.members for each in member.observations
            if each.metric == metric and each.device == "node" and each.note and not each.value
        ]  # fmt: skip

    def devices(self) -> float:
        """Number of ranks of all members."""
        return sum(self.values("training_devices"))

    def together(self) -> float | None:
        """Tokens per second of the block."""
        return self.value("tokens_per_s", scope="block")


def performance_lines(figures: Figures, compared: Comparisons) -> Iterator[Line]:
    """Throughput, scaling, steps, MFU, share of the best matrix product."""
    together, devices = figures.together(), figures.devices()
    if together is not None and devices:
        each = together / devices
        yield Line(
            "tokens/s, the block", f"{number(together)} ({number(each)} a device)",
            comparison=_earlier(compared, "tokens_per_s", "tokens/s a device"),
        )  # fmt: skip
    alone = figures.rows("tokens_per_s", scope="node")
    if alone:
        values = [row.value or 0.0 for _, row in alone]
        slowest = min(alone, key=lambda each: each[1].value or 0.0)
        peers = f"slowest {slowest[0]}: {100 * min(values) / statistics.median(values):.1f} % of the members' median"
        yield Line("tokens/s, a node alone", number(statistics.median(values)), comparison=peers)
    yield from _gated(figures, compared, "scaling", "scaling from one node to the block", worst=min)
    p50, p95 = (figures.values("step_time", scope="block", stat=stat) for stat in ("p50", "p95"))
    if p50 and p95:
        yield Line("step of the block, p50 / p95", f"{figure(max(p50), 's')} / {figure(max(p95), 's')}")
    yield from _gated(figures, compared, "step_p95_to_p50", "step p95 / p50", worst=max)
    yield from _mfu(figures, compared)
    shares = figures.values("share_of_gemm", "", scope="block")
    if shares:
        yield Line(
            "share of the best matrix product measured here", _range(shares, "%"),
            note="FLOP/s of the training over the best product of the model's shapes on the same device",
        )  # fmt: skip


def _mfu(figures: Figures, compared: Comparisons) -> Iterator[Line]:
    alone, block = (figures.rows("mfu", scope=scope) for scope in ("node", "block"))
    found = [statistics.median([row.value or 0.0 for _, row in rows]) for rows in (alone, block) if rows]
    if found:
        _, last = (block or alone)[0]
        yield Line(
            "MFU, a node alone / the block" if alone and block else "MFU",
            " / ".join(f"{each:.1f} %" for each in found),
            comparison=_earlier(compared, "mfu block", "%"),
            note=f"tokens/s a device × FLOP a token (6 N + 6 L d s) ÷ dense peak: {last.note}",
        )  # fmt: skip


def _gated(figures: Figures, compared: Comparisons, metric: str, what: str, worst: object) -> Iterator[Line]:
    rows = figures.rows(metric)
    if not rows:
        return
    row = (min if worst is min else max)((each for _, each in rows), key=lambda each: each.value or 0.0)
    value = row.value or 0.0
    sign, limit = ("≥", row.floor) if row.floor is not None else ("≤", row.ceiling)
    gate, met = "", None
    if limit is not None:
        gate, met = f"{sign} {figure(limit, '', unlike=value)}", value >= limit if sign == "≥" else value <= limit
    shown, before = figure(value, "", unlike=limit), _earlier(compared, metric, "")
    yield Line(what, shown, gate, met, before, row.source if gate else "")


def _earlier(compared: Comparisons, key: str, unit: str) -> str:
    if key not in compared.earlier:
        alike = " and as many devices" if key.startswith(SAVED) else ""
        return f"no earlier block with this recipe{alike} that was not found slow"
    value, blocks = compared.earlier[key]
    return f"{number(value)}{f' {unit}' if unit else ''}: median of {blocks} earlier block{'s' if blocks > 1 else ''}"


def checkpoint_lines(figures: Figures, compared: Comparisons) -> tuple[Line, ...]:
    """Saves and loads, the path they go through, and the run with faults."""
    return (*_saves(figures, compared), *_path(figures), *_faults(figures))


def _saves(figures: Figures, compared: Comparisons) -> Iterator[Line]:
    size = figures.value("checkpoint_bytes")
    for direction, key in (("save", "checkpoint_save"), ("load", "checkpoint_load")):
        p50, p95 = (figures.value(key, stat=stat) for stat in ("p50", "p95"))
        if p50 is None or p95 is None:
            continue
        rate, (_, row) = figures.value("checkpoint_rate", direction=direction), figures.rows(key, stat="p50")[0]
        of = f", {figure(rate, 'GB/s')}" if rate is not None else ""
        varies = f", varies by {100 * row.spread:.0f} %" if row.spread is not None else ""
        note = f"{row.samples} times{varies}" + (f"; {figure((size or 0.0) / 1e9, 'GB')} each" if size else "")
        yield Line(f"checkpoint {direction}, p50 / p95", f"{figure(p50, 's')} / {figure(p95, 's')}{of}", "", None,
                   _earlier(compared, key, "s"), note)  # fmt: skip
    equal = (*figures.rows("resume_equal"), *figures.rows("resume_equal", device=""))
    if equal:
        unlike = [name for name, row in equal if row.value != 1.0]
        yield Line(
            "hash verified, resume equal", "no" if unlike else "yes", "to the last bit", not unlike,
            f"not on {listed(unlike)}" if unlike else "",
            note="weights, moments and loss after each load are those that were saved",
        )  # fmt: skip


def _path(figures: Figures) -> Iterator[Line]:
    for direction in ("write", "read"):
        one, every = (figures.values("shared_rate", direction=direction, nodes=nodes) for nodes in ("one", "all"))
        if one and every:
            rows = figures.rows("shared_rate", direction=direction, nodes="all")
            least, slowest = min((row.value or 0.0, name) for name, row in rows)
            yield Line(
                f"shared path, {direction}: one node alone / all at once, each",
                f"{figure(statistics.median(one), 'GB/s')} / {figure(statistics.median(every), 'GB/s')}",
                comparison=f"all together {figure(sum(every), 'GB/s')}; slowest {slowest}: {figure(least, 'GB/s')}",
            )  # fmt: skip
    for direction in ("write", "read"):
        found = figures.values("shared_fio", direction=direction)
        if found:
            yield Line(f"shared path by fio, {direction}, all at once, each", _range(found, "GB/s"))
    ops = {op: (figures.values("small_files", op=op, nodes="one"), figures.values("small_files", op=op, nodes="all"))
           for op in ("create", "remove")}  # fmt: skip
    if all(every for _, every in ops.values()):
        said = ", ".join(
            f"{op} {' / '.join(number(round(statistics.median(rates))) for rates in (one, every) if rates)}"
            for op, (one, every) in ops.items()
        )
        yield Line("small files a second and node: alone / all at once", said)


def _faults(figures: Figures) -> Iterator[Line]:
    names = (("fault_detect", "detected after"), ("fault_restart", "next step after"), ("fault_lost_work", "work lost"))
    found = [(what, figures.value(metric)) for metric, what in names]
    if any(value is not None for _, value in found):
        said = ", ".join(f"{what} {figure(value, 's')}" for what, value in found if value is not None)
        yield Line("a rank killed, restarted by torchrun's elastic agent", said)


def _range(values: Sequence[float], unit: str) -> str:
    low, high = min(values), max(values)
    text = f"{number(statistics.median(values), 3)} {unit}"
    return text if low == high else f"{text} ({number(low, 3)} to {number(high, 3)})"
