"""Faults that appear after a node has qualified: those that its block has to name, and one in service, between tests,
with its evidence, its repair, its proof, and the spare that takes over.

Repairs are off as shipped. The demo has policies of its own, in which resets of its simulated GPUs are switched on.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
import tarfile

import yaml

from muster import store
from muster.model.health import observation_of
from muster.model.names import SPARE_LABEL
from muster.model.nodes import NewNode
from muster.model.states import SERVING, State
from muster_criteria.sku_files.skus import SHIPPED
from muster_demo.draw import GPUS_PER_NODE, Planted
from muster_demo.fleet import REPAIRED
from muster_demo.scoring import Aftermath
from muster_simulator.defects import with_defect
from muster_simulator.machine import load_machine, save_machine

KIND = "row_remap_pending"
"""A memory row that waits to be replaced: the sweep sees it, the intake test too, and a reset of the GPU repairs it."""


def write_policies(folder: pathlib.Path, level: str) -> None:
    """Write the shipped policies, with resets of the GPUs of simulated nodes switched on and proved at ``level``."""
    files = {name: SHIPPED / "policies" / f"{name}.yaml" for name in ("health", "repair")}
    shipped = {name: yaml.safe_load(path.read_text()) for name, path in files.items()}
    ((label, value),) = REPAIRED.items()
    group = {"label": label, "value": value}
    shipped["health"]["groups"] = [{**group, "mode": "repair"}]
    shipped["repair"]["enabled"] = [{**group, "rungs": ["reset_gpu"]}]
    for ladder in shipped["repair"]["ladders"]:
        ladder["level"] = level
    (folder / "policies").mkdir(parents=True)
    for name, table in shipped.items():
        (folder / "policies" / f"{name}.yaml").write_text(yaml.safe_dump(table, sort_keys=False, allow_unicode=True))


def plant(machine: pathlib.Path, node: str, seed: int, *kinds: str) -> tuple[Planted, ...]:
    """Let a simulated machine have these faults from now on, each on a GPU of its own; returns which."""
    dice = random.Random(f"muster demo {kinds} {seed}")
    slots = dice.sample(range(GPUS_PER_NODE), len(kinds))
    faults = tuple(Planted(node, gpu, kind) for gpu, kind in zip(slots, kinds, strict=True))
    built = load_machine(machine)
    for fault in faults:
        built = with_defect(built, {"kind": fault.kind, "gpu": fault.gpu}, dice)
    save_machine(machine, built)
    return faults


def hold_back(name: str) -> None:
    """Keep a node as a spare: after a block that it passes it waits for the place of another."""
    node = store.nodes.get(name)
    labels = {**node.labels, SPARE_LABEL: "yes"}
    store.nodes.add(NewNode(name, node.host, node.host_key, node.sku, labels=labels, named=frozenset({"labels"})))


def aftermath(fault: Planted) -> Aftermath:
    """What became of the fault, from the records and the archive."""
    events = store.nodes.events(fault.node)
    causes = [
        observation_of(each.evidence)
        for each in events
        if each.from_state in SERVING and each.to_state is State.QUARANTINE
    ]
    seen: dict[int | None, str] = {
        each.id: f"{each.check} on {each.device}" for each in store.health.of_node(fault.node)
    }
    left_for = seen.get(causes[-1], "another reason than the sweep's") if causes else ""
    incidents = [each for each in store.repairs.find(fault.node) if each.fault.device == fault.device]
    if not incidents:
        return Aftermath(fault, left_for)
    incident, attempts = incidents[0], store.repairs.history(incidents[0])
    entries = [
        (node.name, each.evidence.get("replaces"))
        for node in store.nodes.find()
        for each in store.nodes.events(node.name)
        if each.to_state is State.PRODUCTION
    ]
    return Aftermath(
        fault,
        left_for,
        evidence=incident.bundle.path if incident.bundle else "",
        whole=incident.bundle is not None and _whole(pathlib.Path(incident.bundle.path), incident.bundle.sha256),
        repairs=tuple(f"{each.rung}: {each.outcome}" for each in attempts),
        proved=bool(attempts) and attempts[-1].proved is True and incident.closed_at is not None,
        replaced_by=next((name for name, replaces in entries if replaces == fault.node), ""),
    )


def _whole(path: pathlib.Path, sha256: str) -> bool:
    """Whether a bundle is as it was written, and says that its node is simulated."""
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        return False
    with tarfile.open(path) as archive:
        name = next((each for each in archive.getnames() if each.endswith("/manifest.json")), "")
        manifest = archive.extractfile(name) if name else None
        return manifest is not None and json.load(manifest).get("simulated") is True
