"""What other programs report of nodes, in each of the four forms, up to the readings that are recorded.

One report of a fault is among them as it was sent: it is read, as a fault, whatever else the body holds.
"""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from muster.api import report_forms
from muster.errors import MusterError
from muster.integration.report_sources import Form
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

NODE = "gpu-0009"
XID = "GPU has fallen off the bus"
BODIES: dict[Form, tuple[str, list[Any]]] = {
    "muster": ("reports", [
        {"node": NODE, "check": "xid/79", "value": XID},
        {"nodes": ["n1", "n2"], "check": "unisolated", "value": "job 7", "count": 2, "severity": "RESET"},
        {"node": "n1", "check": "port_down", "device": "nic:mlx5_0", "bad": True, "boot_id": "b"},
    ]),
    "alertmanager": ("alerts", [
        {"status": "firing", "labels": {"alertname": "GpuGone", "node": NODE, "severity": "critical"},
         "annotations": {"summary": XID}},
        {"status": "resolved", "labels": {"alertname": "Hot", "instance": "n1:9400"}, "annotations": {}},
    ]),
    "nvsentinel": ("events", [
        {"nodeName": NODE, "checkName": "SysLogsXIDError", "isFatal": True, "isHealthy": False, "errorCode": ["79"],
         "message": XID, "entitiesImpacted": [{"entityType": "PCI", "entityValue": "0000:1b:00"}]},
        {"node_name": "n1", "check_name": "GpuThermalWatch", "is_healthy": True, "entities_impacted": []},
    ]),
    "gpud": ("components", [
        {"component": "accelerator-nvidia-error-xid", "events": [{"name": "xid", "type": "Fatal", "message": XID}]},
        {"component": "disk", "events": [{"name": "full", "type": "Warning", "message": "95 %"}]},
    ]),
}  # fmt: skip


def _draw(rng: random.Random) -> Sample:
    form = rng.choice(list(BODIES))
    name, (planted, *others) = BODIES[form]
    mutated = mutate.document(rng, copy.deepcopy(others))
    listed = [*mutated, planted] if isinstance(mutated, list) else [mutated, planted]
    body = {name: listed} if form != "muster" or rng.random() < 0.8 else listed
    return Sample((form, json.loads(json.dumps(body))), "a report of a fault beside others")


def _read(sample: Sample) -> Taken:
    form, body = sample.data
    found = list(report_forms.read(form, body, NODE))
    kept = [each for each in found if not isinstance(each, str)]
    seen = [each.seen_of(name) for each in kept for name in each.names[:10]]
    fault = [each for each in kept if NODE in each.names and each.value == XID and each.bad is not False]
    texts = [each for each in found if isinstance(each, str)] + [each.check for each in seen]
    return Taken(texts, well=not fault)


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=32 * 2**20)
