"""Reports about nodes in service, as asset events: an XID, a crashed job, the return from a long absence.

A report changes no state: it is noted in the node's history, and the planner of idle tests takes it up. The XID policy
of the node's SKU decides what an error of the GPU driver requires.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic

from muster import store
from muster.errors import MusterError, UnknownNode
from muster.settings import settings
from muster_criteria.text import one_line
from muster_criteria.xid.policy import XidEvent, XidSeverity, response_to

log = logging.getLogger(__name__)

ASSET = "muster_node_report"
_MINOR = frozenset({XidSeverity.IGNORE, XidSeverity.MONITOR})
"""XIDs that count as signs of a node, and demand no test by themselves."""


class Report(pydantic.BaseModel):
    """The extra of one event. ``id``: the same for each repetition. ``cluster``: where ``nodes`` have these names;
    empty: Muster's own names. ``code``: of an XID. ``job`` and ``user``: what ran. Airflow adds ``from_rest_api``.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    id: str = pydantic.Field(min_length=1, max_length=200)
    kind: Literal["xid", "job_crash", "returned"]
    nodes: list[str] = pydantic.Field(min_length=1, max_length=20_000)
    cluster: str = ""
    code: int | None = pydantic.Field(default=None, ge=0, le=10_000)
    job: str = pydantic.Field(default="", max_length=100)
    user: str = pydantic.Field(default="", max_length=100)
    text: str = pydantic.Field(default="", max_length=1000)
    from_rest_api: bool = False

    @pydantic.model_validator(mode="after")
    def _code(self) -> Report:
        if (self.kind == "xid") is not (self.code is not None):
            raise ValueError("give code with kind xid, and with no other")
        return self

    @property
    def sentence(self) -> str:
        """As the history and the plan show it."""
        what = {"xid": f"XID {self.code}", "job_crash": "a job crashed", "returned": "it returned from a long absence"}
        ran = f" (job {self.job}{f' of {self.user}' if self.user else ''})" if self.job else ""
        return one_line(f"reported: {what[self.kind]}{ran}{f': {self.text}' if self.text else ''}")


def receive(extras: Sequence[Mapping[str, Any]]) -> list[str]:
    """Note the reports of a run's events. Returns the nodes of which one is new.

    Raises MusterError at the end if one cannot be used: the others are noted all the same.
    """
    noted: list[str] = []
    problems: list[str] = []
    places = {(place.cluster, place.name): place.node for place in store.schedulers.places()}
    for extra in extras:
        try:
            report = Report.model_validate(extra)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            problems.append(f"{'.'.join(str(part) for part in first['loc']) or 'a report'}: {first['msg']}")
            continue
        for name in report.nodes:
            node = places.get((report.cluster, name)) if report.cluster else name
            try:
                if node is None:
                    raise UnknownNode(f"no node has the name {name!r} in {report.cluster}")
                if store.reported.note(node, report.id, report.kind, report.sentence, urgent=_urgent(node, report)):
                    noted.append(node)
            except UnknownNode as error:
                problems.append(str(error))
    if problems:
        raise MusterError(f"{len(problems)} reports cannot be used: {'; '.join(problems[:5])}")
    return noted


def _urgent(node: str, report: Report) -> bool:
    if report.code is None:
        return True
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import load_sku

    try:
        policy = load_sku(store.nodes.get(node).sku, settings().sku_folders).xid_policy
    except SkuError as error:
        log.warning("%s: %s", node, error)
        return True
    if policy is None:
        return True
    return response_to(XidEvent("xid", report.code, "", "", report.text), policy).severity not in _MINOR
