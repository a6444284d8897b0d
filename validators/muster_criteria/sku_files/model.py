"""The content of a SKU file: a hardware model with its limits, and the programme that tests it. Pydantic models."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    FiniteFloat,
    InstanceOf,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from muster_criteria.device_events.policy import EventPolicy
from muster_criteria.fleet.series.comparisons import Comparison, Derivation
from muster_criteria.labels import labelled
from muster_criteria.sku_files.figures import Absent, Figure, Peaks
from muster_criteria.sku_files.learned import LearnedFile, with_learned, without
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.peaks import peaks_of
from muster_criteria.sku_files.versions import Allowed
from muster_criteria.sku_files.work import at_level, is_per_level, outdated
from muster_criteria.stages import LEVELS, Level, Stage
from muster_criteria.text import one_line
from muster_criteria.written import Written, one_or_more


class SkuError(Exception):
    """A SKU file that cannot be used, or a SKU that is not there; the message is one sentence with the remedy."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a SKU file: where (file, key), which problem (``code``), and a sentence."""

    file: str
    key: str
    code: str
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.file}: {self.key}: {self.message}.")


Choices = Annotated[tuple[str, ...], BeforeValidator(one_or_more)]


class Requirement(Written):
    """A metric that a stage must have measured before it may pass.

    ``devices``: "each gpu", "each cpu", "each core" (one logical CPU for each physical core), or one device's name. A
    label with several values requires one measurement for each. ``judged: false``: it is enough that it was measured,
    for what is only reported (a serial number). ``where_readable`` is for counters that not every machine offers: the
    probe must have tried, and "not readable here" with a reason is a note, not a miss. ``where_supported`` excuses only
    what the device or its driver lacks altogether; if they have it and give no value, it is missed. ``or_judged``: a
    metric of the same probe, devices and labels that must be judged on a device so excused, if no other figure would
    show how good the device is. ``levels`` limits it to some levels. ``shown: false`` is set only by the reader
    (``shown``): the metric is a term of the programme that no family of the SKU shows, so it is always missed.
    """

    metric: str
    devices: Annotated[str, Field(pattern=r"^(each (gpu|cpu|core)|[a-z]+[0-9]*(:[A-Za-z0-9_.-]+)?)$")]
    labels: dict[str, Choices] = Field(default_factory=dict)
    judged: bool = True
    where_readable: bool = False
    where_supported: bool = False
    or_judged: str = ""
    shown: bool = True
    levels: tuple[Level, ...] = LEVELS


class Sensor(Requirement):
    """A sensor that the SKU promises, with the probe and stage that read it; a node without it misses a measurement."""

    stage: Stage
    probe: str


class ProbeUse(Written):
    """How a stage uses one probe. A value that depends on the level is a map with an entry for each of ``LEVELS``.

    ``sequential``: it takes minutes and sometimes fails on sound hardware, so its runs are weighed (``sequential``).
    ``retest``: levels at which it is short enough to be run again if the fleet needs that (``retests``).
    """

    timeout_s: Annotated[FiniteFloat, Field(gt=0)] | dict[Level, Annotated[FiniteFloat, Field(gt=0)]]
    params: dict[str, Any] = Field(default_factory=dict)
    levels: tuple[Level, ...] = LEVELS
    require: tuple[Requirement, ...] = ()
    sequential: bool = False
    retest: tuple[Level, ...] = ()

    @model_validator(mode="after")
    def _every_level(self) -> ProbeUse:
        for name, value in [("timeout_s", self.timeout_s), *self.params.items()]:
            if is_per_level(value):
                absent = [level for level in self.levels if level not in value]
                if absent:
                    raise ValueError(f"{name} has no value for level {', '.join(absent)}")
        return self

    def timeout_at(self, level: str) -> float:
        """Seconds that the probe may take at ``level``."""
        return float(at_level(self.timeout_s, level))

    def params_at(self, level: str) -> dict[str, Any]:
        """The probe's parameters at ``level``."""
        return {name: at_level(value, level) for name, value in self.params.items()}


class StagePlan(Written):
    """One stage: whether its FAIL stops the burn, and its probes in the order they run."""

    blocking: bool = False
    probes: dict[str, ProbeUse]


class Programme(Written):
    """The probes of a class of machines, stage by stage; SKU files share it.

    ``compare``: the metrics that the fleet may judge, by siblings, peers and history; ``derive``: metrics made from
    others for that.
    """

    programme: str
    title: str
    stages: dict[Stage, StagePlan]
    derive: tuple[Derivation, ...] = ()
    compare: tuple[Comparison, ...] = ()


BLOCK_LIMITS = (
    *(("step_excess", breach, {"devices": devices}) for breach in ("warn", "fail") for devices in ("one", "several")),
    ("arrival_lag", "warn", {}),
    ("scaling", "warn", {}),
    ("step_p95_to_p50", "warn", {}),
    ("alone_drop", "warn", {}),
    ("path_drop", "warn", {}),
    ("earlier_drop", "warn", {}),
    ("shared_drop", "warn", {}),
    ("save_rise", "warn", {}),
)
"""(metric, breach, labels) of the limits that a block's judge needs."""

PAIR_RATE = "pair_bandwidth"
"""The rate of a rail between two nodes. A block may have a floor for it for each backend."""


class BlockProgramme(Written):
    """The steps of every member of a block, in order, the required measurements, and the limits of the training.

    A SKU file's ``block_limits`` replace those with the same metric, breach and labels.
    """

    programme: str
    title: str
    probes: dict[str, ProbeUse]
    limits: tuple[Limit, ...]

    @model_validator(mode="after")
    def _every_limit(self) -> BlockProgramme:
        for metric, breach, labels in BLOCK_LIMITS:
            if self._limit(metric, breach, labels) is None:
                raise ValueError(f"has no {breach} limit, as a number, on {labelled(metric, labels)}")
        for each in self.limits:
            needed = (each.metric, each.breach, each.labels) in BLOCK_LIMITS
            if not needed and each.metric in [metric for metric, _, _ in BLOCK_LIMITS]:
                raise ValueError(f"judges nothing by a {each.breach} limit on {labelled(each.metric, each.labels)}")
            form = (each.key, each.unit, each.breach, list(each.labels))
            if each.metric == PAIR_RATE and form != ("floor", "Gb/s", "warn", ["backend"]):
                raise ValueError(f"a limit on {PAIR_RATE} is a floor in Gb/s that warns, with the label backend only")
        return self

    def limit(self, metric: str, breach: str, **labels: str) -> Limit:
        """The limit of ``BLOCK_LIMITS`` with this metric, breach and labels; its ``number`` is set."""
        limit = self._limit(metric, breach, labels)
        assert limit is not None
        return limit

    def _limit(self, metric: str, breach: str, labels: dict[str, str]) -> Limit | None:
        wanted = (metric, breach, labels)
        found = (each for each in self.limits if (each.metric, each.breach, each.labels) == wanted)
        return next((each for each in found if each.number is not None), None)


class Sku(Written):
    """One hardware model. ``devices``: the number of each kind, or "inventory" if the machine itself reports it.

    ``block``: the programme of its nodes together with others. ``names``: what sources call the model. ``includes``:
    the families whose sensors and limits it shares. ``domain_nodes``: how many nodes an NVLink domain has, if it spans
    a rack. ``version`` is written by people; ``revision`` adds a digest of all files read, and verdicts cite it.
    ``learned``: the revisions of learned floors in force, one for each stack and level; ``on`` applies them.
    """

    sku: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    version: str
    title: str
    programme: Programme
    block: BlockProgramme
    names: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    event_policies: tuple[InstanceOf[EventPolicy], ...]
    devices: dict[Literal["gpu", "cpu", "core"], Annotated[int, Field(ge=0)] | Literal["inventory"]]
    domain_nodes: Annotated[int, Field(ge=2)] | None = None
    sensors: tuple[Sensor, ...] = ()
    inventory: tuple[Limit, ...] = ()
    peaks: tuple[Peaks, ...] = ()
    figures: tuple[Figure, ...] = ()
    limits: Annotated[tuple[Limit, ...], Field(validate_default=True)] = ()
    versions: tuple[Allowed, ...] = ()
    absent: tuple[Absent, ...] = ()
    learned: tuple[LearnedFile, ...] = ()
    file: str
    digest: str
    _physical_peaks: tuple[Limit, ...] = PrivateAttr(())
    _on: dict[tuple[str, str], Sku] = PrivateAttr(default_factory=dict)

    @field_validator("limits")
    @classmethod
    def _with_floors(cls, written: tuple[Limit, ...], info: ValidationInfo) -> tuple[Limit, ...]:
        """The file's limits and the floors of its figures."""
        figures: tuple[Figure, ...] = info.data.get("figures", ())
        return (*written, *(limit for figure in figures if (limit := figure.limit)))

    @model_validator(mode="after")
    def _derived(self) -> Sku:
        self._physical_peaks = peaks_of(self.peaks, self.figures, self.inventory, self.limits)
        self._on = {}
        for file in self.learned:
            limits = with_learned(self.limits, without(file, outdated(self, file)))
            self._on[file.stack, file.level] = self.model_copy(update={"limits": limits, "learned": ()})
        return self

    def on(self, stack: str, level: str) -> Sku:
        """The SKU with the limits for nodes with ``stack`` at ``level``; this one if no floors were learned for
        these."""
        return self._on.get((stack, level), self)

    @property
    def name(self) -> str:
        """The SKU's name, as nodes carry it."""
        return self.sku

    @property
    def revision(self) -> str:
        """The revision that verdicts cite: the written version and the first eight digits of the files' digest."""
        return f"{self.version}+{self.digest[:8]}"

    @property
    def gpus(self) -> int | None:
        """How many GPUs the SKU counts, None if it counts none."""
        counted = self.devices.get("gpu")
        return counted if isinstance(counted, int) and counted > 0 else None

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """Inventory expectations, limits, and physical peaks."""
        return self.inventory + self.limits + self.physical_peaks

    @property
    def physical_peaks(self) -> tuple[Limit, ...]:
        """The invalid ceilings that follow from the file's peaks, figures and inventory (see ``peaks_of``)."""
        return self._physical_peaks

    def stage(self, stage: str) -> StagePlan:
        """The programme's plan of a stage. Raises SkuError where it has none."""
        plan = self.programme.stages.get(stage)  # type: ignore[call-overload]
        if plan is None:
            known = ", ".join(self.programme.stages)
            raise SkuError(
                f"programme {self.programme.programme} of SKU {self.name} has no stage {stage} (it has {known})."
            )
        return plan  # type: ignore[no-any-return]
