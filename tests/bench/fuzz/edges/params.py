"""Parameters of DAG runs and asset events, as the form, REST and provisioning systems send them."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from typing import Any

from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import ParamValidationError

from muster.enrolment import inventory
from muster.errors import BadInventory, MusterError
from muster.integration import runid
from muster.operators import forms
from muster.operators.lifecycle import arrival
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

SKUS = ("cpu-generic", "h100-sxm-8")
RUN_ID = re.compile(r"[A-Za-z0-9_.~:+-]{1,250}")
"""What Airflow accepts by default (``core.allowed_run_id_pattern``) and its column holds."""
KEY = "gpu-0001__PO-4711"
EXTRA: dict[str, Any] = {
    "level": "short",
    "inventory": {
        "name": "gpu-0001",
        "host": "10.0.0.1",
        "sku": "h100-sxm-8",
        "labels": {"team": "training"},
        "launch": {"kind": "venv", "path": "/opt/venv"},
    },
}
FORM: dict[str, Any] = {"node": "gpu-0001", "level": "short", "reason": "new rack", "pool": "rack-12"}


def _draw(rng: random.Random) -> Sample:
    if rng.random() < 0.4:
        form = mutate.document(rng, copy.deepcopy(FORM))
        if rng.random() < 0.3 and isinstance(form, dict):
            form["level"] = rng.choice(("deep", "", None, 3, "SHORT", ["short"]))
            return Sample(("form", form), "a form without a level")
        return Sample(("form", form))
    key, extra = KEY, copy.deepcopy(EXTRA)
    draw = rng.random()
    if draw < 0.15:
        return Sample(("event", (rng.choice(("", "gpu-0001", "../x__PO", "__PO", "gpu 1__PO")), [extra])), "a bad key")
    if draw < 0.3:
        return Sample(("event", (key, [extra, {**extra, "level": "long"}])), "two events that differ")
    if draw < 0.4:
        extra["inventory"]["name"] = "gpu-0002"
        return Sample(("event", (key, [extra])), "the line of another node")
    if draw < 0.6:
        key = mutate.text(rng, key)
    return Sample(("event", (key, [mutate.document(rng, extra)])))


def _read(sample: Sample) -> Taken:
    kind, sent = sample.data
    return _form(sent) if kind == "form" else _event(*sent)


def _form(sent: Any) -> Taken:
    declared = {"node": forms.node(), "level": forms.level(), "reason": forms.reason(), "pool": forms.pool()}
    params = ParamsDict(declared)
    if not isinstance(sent, dict):
        return Taken()  # Airflow's API takes an object only
    try:
        params.update(sent)
        checked = params.validate()
    except ParamValidationError:
        return Taken()  # shown in the form, under Airflow's own heading
    return Taken(injections=_run_ids(runid.run_id("gpu-0001", str(checked["reason"]))), well=True)


def _event(key: str, extras: list[Any]) -> Taken:
    if not all(isinstance(extra, dict) for extra in extras):
        return Taken()  # Airflow's API takes an object only
    read = arrival.read(key, extras)
    texts = [read.node]
    if read.extra.inventory is not None:
        try:
            texts += [
                text
                for _, node in inventory.described({**read.extra.inventory, "name": read.node}, SKUS)
                for text in (node.host, node.user, node.rack, *node.labels, *node.labels.values())
            ]
        except BadInventory as refused:
            return Taken(refused.problems)
    return Taken(texts, _run_ids(runid.of_delivery("gpu-0001", read.delivery)), well=True)


def _run_ids(made: str) -> Iterator[str]:
    if not RUN_ID.fullmatch(made):
        yield f"run id {made!r}"


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=32 * 2**20)
