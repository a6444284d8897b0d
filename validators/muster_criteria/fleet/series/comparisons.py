"""Which metrics the fleet may judge, and what a worse value of each means: readable data of the programme.

A metric that is listed nowhere here is judged by its SKU's limits alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat

from muster_criteria.devices import Kind
from muster_criteria.model import Action, FaultClass
from muster_criteria.written import Written

Worse = Literal["lower", "higher"]
Spread = Literal["low", "varied"]
"""``low``: healthy parts hardly differ (rate per clock, HBM, PCIe, NVLink). ``varied``: each part settles at a clock
of its own, so healthy ones differ by several percent."""


class Comparison(Written):
    """A metric that is compared with siblings, peers and history, over all its labels.

    ``worse``: the bad direction. ``family``: metrics that one cause affects together; the median of their distances
    from the peers in one stage is judged too, as ``<family>_index``: it is steadier than any of them. ``given``, on the
    first of a family: a metric of the same device that explains part of it (temperature: of a clock). The index without
    that part, by the slope that the fleet shows, is judged as ``<family>_given_<metric>``. ``judged`` false: it only
    explains others. ``weight``: its part of the budget of false alarms, for each label, shared with the others of its
    spread; less than 1 if another shows the same fault. ``fault``, ``action``, ``meaning``: as for a limit. Only
    quantities with a true zero (rates, resistances, power) may be judged, since distances are shares.
    """

    metric: str
    device: Kind
    unit: str
    worse: Worse
    spread: Spread = "low"
    family: Annotated[str, Field(pattern=r"^[a-z0-9_]*$")] = ""
    given: Annotated[str, Field(pattern=r"^[a-z0-9_]*$")] = ""
    judged: bool = True
    weight: Annotated[FiniteFloat, Field(gt=0, le=1)] = 1.0
    fault: FaultClass = FaultClass.GPU
    action: Action = Action.RETEST
    meaning: str = ""


class Derivation(Written):
    """A metric made from two others of the same device and labels: ``times`` × ``of`` / ``per``.

    Variation with the clock of each part cancels, and the rest hardly varies. ``of_unit`` and ``per_unit``: the only
    units in which the two are used; values in another unit are ignored.
    """

    metric: str
    device: Kind
    unit: str
    of: str
    of_unit: str
    per: str
    per_unit: str
    times: FiniteFloat = 1.0
