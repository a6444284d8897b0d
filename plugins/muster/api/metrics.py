"""The fleet's figures as metrics in the OpenMetrics format.

Age of the last PASS: a histogram for the fleet, and one series for each node with the time of its last PASS. A time
changes only when the node passes, so that Prometheus stores it in almost no space, and age is ``time() - metric`` in a
query; an age would change at each scrape. Rack and state are labels of that one series, which keeps it at one series a
node.
"""

from __future__ import annotations

import collections
import datetime
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

from muster.model.attention import Attention, Cause, Turn
from muster.model.figures import DURATIONS_S, GIVE_BACK_S, FleetFigures, NodeFigures, Spread
from muster.model.states import SERVING, State
from muster_criteria.cluster.goodput import forecast
from muster_reports.digest.numbers import Mean

CONTENT_TYPE = CONTENT_TYPE_LATEST
AGES_S = tuple(hours * 3600.0 for hours in (1, 4, 12, 24, 48, 7 * 24, 14 * 24, 30 * 24, 90 * 24))
ASKED = (Cause.QUESTION, Cause.HELD)
KINDS = (False, True)
"""The values of the label ``simulated``: both are always shown."""
WINDOW_TEXT = "in the last 24 hours"
COUNTED = "in the last 30 days"
ZERO, NUMBERS_LAST = datetime.timedelta(), datetime.timedelta(days=1)
Value = float | datetime.datetime | None
"""A moment is shown in seconds since 1970, none as 0."""

NODE_METRIC = "muster_node_last_pass_timestamp_seconds"
NODE_TEXT = "oldest of the last PASSes of the node's stages, in seconds since 1970; 0: some stage never passed"
NODE_HEAD = f"# HELP {NODE_METRIC} {NODE_TEXT}\n# TYPE {NODE_METRIC} gauge\n"
END = b"# EOF\n"


class Fleet:
    """A collector, as ``prometheus_client`` calls it, of figures that were read before."""

    def __init__(self, figures: FleetFigures) -> None:
        self.figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yields every metric except that of single nodes; an empty queue is 0, not absent."""
        yield from self._nodes()
        yield from self._tests()
        yield from self._queues()
        yield from self._ranks()
        yield from self._numbers()

    def _nodes(self) -> Iterable[Metric]:
        seen, nodes = self.figures, self.figures.nodes
        states = collections.Counter((each.sku, each.state, _flag(each.simulated)) for each in nodes)
        kinds = sorted({(sku, simulated) for sku, _, simulated in states})
        full = {(sku, str(state), simulated): 0 for sku, simulated in kinds for state in State} | states
        verdicts = collections.Counter(
            (each.sku, each.verdict or "none", _flag(each.simulated))
            for each in nodes if each.state != State.RETIRED
        )  # fmt: skip
        serving = [each for each in nodes if each.state in SERVING]
        tested = [each for each in serving if not each.paused]
        return (
            _gauge("muster_nodes", "nodes by model and state", ("sku", "state", "simulated"), full),
            _gauge("muster_nodes_by_verdict", "nodes that are not retired by the verdict of their last run",
                   ("sku", "verdict", "simulated"), verdicts),
            *self._attention(),
            _gauge("muster_nodes_held", "nodes in service although a verdict that is held would withdraw them",
                   ("simulated",), _number_of(node for node in nodes if node.held)),
            _gauge("muster_nodes_shadow", "nodes in service that were adopted and not verified yet",
                   ("simulated",), _number_of(node for node in serving if node.shadow)),
            _gauge("muster_nodes_uncertified", "verified nodes in service without a valid certificate",
                   ("simulated",), _number_of(node for node in nodes if node.uncertified)),
            _gauge("muster_nodes_uncertified_oldest_timestamp_seconds", "since when the longest of them; 0: none",
                   ("simulated",), _by_kind(seen.uncertified_since.get)),
            _gauge("muster_nodes_unswept_oldest_timestamp_seconds", "since when the health sweep has not read the node "
                   "in service that it did not read for longest, without those that a run holds or whose tests are "
                   "paused; 0: none", ("simulated",), _by_kind(seen.unswept_since.get)),
            _gauge("muster_nodes_test_due", "nodes in service of which a test is due, or that serve again once they "
                   "pass it, without those whose tests are paused", ("simulated",), _number_of(
                       node for node in tested if node.state == State.REVALIDATION or not self._rests(node))),
            _gauge("muster_nodes_stale", "nodes in service of which the whole test has been due for 14 days, without "
                   "those whose tests are paused", ("simulated",),
                   _number_of(node for node in tested if self._stale(node))),
            _histogram("muster_last_pass_age_seconds", "age of the oldest of the last PASSes of its stages, "
                       "of each node in service; +Inf, and not in the sum, where some stage never passed",
                       ("sku", "simulated"), AGES_S, _ages(serving, seen.at)),
            _gauge("muster_breaker_open", "1 if the circuit breaker holds the next withdrawal", ("simulated",),
                   {(_flag(kind),): each.open for kind, each in seen.breakers.items()}),
        )  # fmt: skip

    def _rests(self, node: NodeFigures) -> bool:
        """Whether each stage of the node was tested, and recently enough that no test is due."""
        after = self.figures.due_after.get((node.sku, node.simulated), ZERO)
        last = node.looked_at if after < self.figures.whole_after else node.tested_at  # no part of a whole test fits
        return node.tested_at is not None and last is not None and self.figures.at - last < after

    def _stale(self, node: NodeFigures) -> bool:
        after = self.figures.whole_after + datetime.timedelta(days=14)
        since = node.tested_at or self.figures.untested_since.get(node.name)
        return since is not None and self.figures.at - since >= after

    def _attention(self) -> Iterable[Metric]:
        """Nodes that do not serve, by who acts next: a node counts once, for a person if that is one of them."""
        seen = self.figures.attention
        out = {each.node: each for each in reversed(seen) if not each.serving}.values()
        counts = collections.Counter[tuple[str, ...]]((each.turn, _flag(each.simulated)) for each in out)
        since: dict[tuple[str, ...], list[float]] = {(turn, _flag(kind)): [] for turn in Turn for kind in KINDS}
        for each in out:
            if each.waits_for_muster or each.turn is not Turn.MUSTER:
                since[each.turn, _flag(each.simulated)].append(_number(each.since))
        asked = [each for each in seen if each.cause in ASKED and each.until]
        held = [each for each in seen if each.cause is Cause.HELD]
        return (
            _gauge("muster_nodes_not_serving", "nodes that do not serve, by who acts next", ("turn", "simulated"),
                   {of: counts[of] for of in since}),
            _gauge("muster_nodes_not_serving_oldest_timestamp_seconds", "since when the longest of them, but for tests "
                   "under way and spares; 0: none", ("turn", "simulated"),
                   {of: min(times, default=0.0) for of, times in since.items()}),
            _gauge("muster_questions_open", "questions that wait for a person's answer",
                   ("simulated",), _number_of(asked)),
            _gauge("muster_questions_oldest_timestamp_seconds", "since when the oldest of them waits; 0: none",
                   ("simulated",), _oldest(asked)),
            _gauge("muster_nodes_held_oldest_timestamp_seconds",
                   "since when the longest of those with a held verdict; 0: none", ("simulated",), _oldest(held)),
        )  # fmt: skip

    def _tests(self) -> Iterable[Metric]:
        seen = self.figures
        since = seen.tests.since.items()
        begun = {kind: min((at for (_, of), at in since if of == _flag(kind)), default=None) for kind in KINDS}
        return (
            _gauge("muster_controller_faults", f"runs that ended SKIPPED {WINDOW_TEXT}, for a fault of the controller",
                   ("simulated",), _by_kind(lambda kind: seen.controller_faults.get(kind, 0))),
            _gauge("muster_findings", f"findings {WINDOW_TEXT} that are not waived, by suspected part",
                   ("stage", "class", "severity", "simulated"), seen.findings),
            _gauge("muster_corrupting_findings", f"critical findings {WINDOW_TEXT} that are not waived, and reports, "
                   "of corrupted data", ("metric", "simulated"), seen.corrupting),
            _histogram("muster_stage_duration_seconds", f"duration of stages {WINDOW_TEXT}",
                       ("stage", "level", "simulated"), DURATIONS_S, seen.stage_durations),
            _histogram("muster_run_duration_seconds", f"duration of runs that ended {WINDOW_TEXT}, waits included",
                       ("dag", "level", "verdict", "simulated"), DURATIONS_S, seen.run_durations),
            _histogram("muster_give_back_seconds", "from the wish to give a node back until its scheduler confirmed "
                       f"it, last change of each node {WINDOW_TEXT}", ("cluster",), GIVE_BACK_S, seen.give_back),
            _gauge("muster_tests_running", "nodes that a run holds now", ("dag", "simulated"), seen.tests.counts),
            _gauge("muster_tests_oldest_timestamp_seconds", "when the oldest last job of them began; 0: none",
                   ("simulated",), _by_kind(begun.get)),
            _gauge("muster_pool_last_job_timestamp_seconds", "of each pool in which new nodes wait for their first "
                   "job: when a job of a new node began last, or since when they wait", ("pool", "simulated"),
                   seen.pools),
        )  # fmt: skip

    def _ranks(self) -> Iterable[Metric]:
        seen = self.figures.ranks
        steps = {(each.node, each.device, each.part): each.seconds for each in seen if each.device != "node"}
        whole = {(each.node, each.part): each.seconds for each in seen if each.device == "node"}
        slow = {(each.node, each.device): 1 for each in seen if each.straggler and each.device != "node"}
        return (
            _gauge("muster_block_step_seconds", "median step of each rank by what it is spent on, of each node its "
                   f"last block {WINDOW_TEXT}", ("node", "device", "part"), steps),
            _gauge("muster_block_straggler", "1 for each of these ranks that held the others up", ("node", "device"),
                   slow),
            _gauge("muster_block_collective_seconds", "median time in a collective of the largest size, of each node "
                   f"its last block {WINDOW_TEXT}", ("node", "op"), whole),
        )  # fmt: skip

    def _queues(self) -> Iterable[Metric]:
        seen = self.figures
        return (
            _gauge("muster_mails_waiting", "mails to be sent", (), seen.mails.counts),
            _gauge("muster_mails_oldest_timestamp_seconds", "since when the oldest of them is due; 0: none", (),
                   seen.mails.oldest),
            _gauge("muster_mails_parked", "mails and notifications that were given up", (), seen.parked),
            _gauge("muster_scheduler_changes_waiting", "changes that wait for a scheduler", ("cluster", "wanted"),
                   seen.changes.counts),
            _gauge("muster_scheduler_changes_oldest_timestamp_seconds",
                   "since when the oldest of them waits", ("cluster", "wanted"), seen.changes.since),
            _gauge("muster_scheduler_differences", "nodes that their scheduler shows otherwise than the records", (),
                   seen.differences.counts),
            _gauge("muster_scheduler_differences_oldest_timestamp_seconds", "since when the longest of them; 0: none",
                   (), seen.differences.oldest),
            _gauge("muster_audit_oldest_timestamp_seconds", "since when the oldest event waits that a receiver of the "
                   "audit stream has not accepted; 0: none", ("sink",),
                   {(each.sink,): each.since for each in seen.audit}),
            _gauge("muster_dag_last_success_timestamp_seconds", "when the last run that succeeded of each DAG with a "
                   "schedule ended; 0: not in four days, or Airflow's database cannot be read", ("dag",),
                   {(dag,): at for dag, at in seen.succeeded.items()}),
            _gauge("muster_read_timestamp_seconds", "when these figures were read", (), seen.at),
        )  # fmt: skip

    def _numbers(self) -> Iterable[Metric]:
        """What the page Numbers shows, counted once an hour: a scrape only reads it. Old numbers are left out."""
        seen = self.figures
        kept = [(each, _flag(each.simulated)) for each in seen.numbers if seen.at - each.until < NUMBERS_LAST]
        of = {(each.sku, kind): each for one, kind in kept for each in one.skus if each.sku}
        by = ("sku", "simulated")
        return (
            _gauge("muster_interruptions", f"moves out of service for a fault, {COUNTED}", by,
                   {key: each.interruptions.events for key, each in of.items()}),
            _gauge("muster_mtbi_seconds", f"mean time in service between interruptions, {COUNTED}, and the limits of "
                   "its 90 % interval; what is not known is absent", (*by, "bound"),
                   _bounds({key: each.interruptions for key, each in of.items()})),
            _gauge("muster_mttf_seconds", f"mean time in service to a node's first failed test, {COUNTED}, likewise",
                   (*by, "bound"), _bounds({key: each.failures for key, each in of.items()})),
            _gauge("muster_availability_ratio", f"time in service over time in service and withdrawn, {COUNTED}", by,
                   {key: each.availability for key, each in of.items() if each.availability is not None}),
            _gauge("muster_state_node_seconds", f"node-seconds in each state, {COUNTED}", (*by, "state"),
                   {(*key, state): 3600.0 * hours for key, each in of.items() for state, hours in each.hours.items()}),
            _gauge("muster_lost_node_seconds", f"node-seconds lost by nodes that had been in production, {COUNTED}",
                   (*by, "cause"),
                   {(*key, cause): 3600.0 * hours for key, each in of.items() for cause, hours in each.lost.items()}),
            _gauge("muster_repair_seconds", "time out of service for a fault, of the last year: median and 90 %",
                   (*by, "quantile"),
                   {(*key, quantile): seconds for key, each in of.items()
                    for quantile, seconds in (("0.5", each.repairs.median_s), ("0.9", each.repairs.tail_s))
                    if seconds is not None}),
            _gauge("muster_returned", f"nodes that went to a vendor, {COUNTED}", ("vendor", "part", "simulated"),
                   {(row.vendor, row.part, kind): row.nodes for each, kind in kept for row in each.returned}),
            _gauge("muster_escapes", "failures in service of the last year that a test had let pass",
                   ("level", "stage", "group", "simulated"),
                   {(row.level, row.stage, row.group, kind): row.escapes for each, kind in kept
                    for row in each.escapes}),
            _gauge("muster_spares", "qualified nodes that wait, and how many a job of all nodes in service needs for a "
                   "week, in 99 of 100", (*by, "kind"),
                   {(pool.sku, kind, which): count for each, kind in kept for pool in each.pools
                    for which, count in (("needed", pool.needed), ("qualified", pool.qualified))}),
            _gauge("muster_ettr_ratio", "share of its time that a job of all nodes in service is expected to train", by,
                   {(jobs.sku, kind): forecast(jobs.inputs, [jobs.service * jobs.inputs.gpus_a_node])[0].ettr
                    for each, kind in kept for jobs in each.jobs}),
        )  # fmt: skip


def render(figures: FleetFigures) -> bytes:
    """The figures in the OpenMetrics text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Fleet(figures))
    shown: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    lines = map(_node_line, figures.nodes)
    return b"".join((shown.removesuffix(END), NODE_HEAD.encode(), *lines, END))


def _node_line(node: NodeFigures) -> bytes:
    # Written here, since the library takes 15 microseconds a sample: half of the answer's time with 10,000 nodes.
    node_, rack, state = (
        value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
        for value in (node.name, node.rack, node.state)
    )
    value = _number(node.passed_at)
    return f'{NODE_METRIC}{{node="{node_}",rack="{rack}",state="{state}"}} {value}\n'.encode()


def _gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Any, Value] | Value) -> Metric:
    """A metric with its values by their labels, or with the one value of a metric without labels."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in (values if isinstance(values, Mapping) else {(): values}).items():
        family.add_metric(key, _number(value))
    return family


def _by_kind(value: Callable[[bool], Value]) -> dict[tuple[str, ...], Value]:
    """{whether simulated: its value}."""
    return {(_flag(kind),): value(kind) for kind in KINDS}


def _number_of(found: Iterable[NodeFigures | Attention]) -> dict[tuple[str, ...], Value]:
    counts = collections.Counter(each.simulated for each in found)
    return _by_kind(lambda kind: counts[kind])


def _oldest(found: Sequence[Attention]) -> dict[tuple[str, ...], Value]:
    return _by_kind(lambda kind: min((_number(each.since) for each in found if each.simulated is kind), default=None))


def _bounds(means: Mapping[tuple[str, ...], Mean]) -> dict[tuple[str, ...], float]:
    """{(labels, bound): seconds} of what is known."""
    return {
        (*key, bound): 3600.0 * hours
        for key, each in means.items()
        for bound, hours in (("low", each.least), ("mean", each.mean), ("high", each.most))
        if hours is not None and each.hours
    }


def _histogram(
    name: str, text: str, labels: Sequence[str], limits: Sequence[float], spreads: Iterable[Spread]
) -> Metric:
    family = GaugeHistogramMetricFamily(name, text, labels=labels)
    bounds = [*(str(limit) for limit in limits), "+Inf"]
    for spread in spreads:
        buckets = list(zip(bounds, map(float, itertools.accumulate(spread.counts)), strict=True))
        family.add_metric(spread.labels, buckets, spread.seconds)
    return family


def _ages(nodes: Iterable[NodeFigures], now: datetime.datetime) -> Iterator[Spread]:
    ages = collections.defaultdict(list)
    for node in nodes:
        age = math.inf if node.passed_at is None else (now - node.passed_at).total_seconds()
        ages[node.sku, _flag(node.simulated)].append(age)
    for labels, each in sorted(ages.items()):
        counts = collections.Counter(sum(age > limit for limit in AGES_S) for age in each)
        known = sum(age for age in each if age < math.inf)
        yield Spread(labels, tuple(counts[place] for place in range(len(AGES_S) + 1)), known)


def _number(value: Value) -> float:
    return value.timestamp() if isinstance(value, datetime.datetime) else value or 0.0


def _flag(value: bool) -> str:
    return "true" if value else "false"
