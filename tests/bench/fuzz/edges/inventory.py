"""An inventory in YAML or CSV, up to the nodes to enrol and the command that would run on each."""

from __future__ import annotations

import dataclasses
import random
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from muster.enrolment import inventory
from muster.errors import MusterError
from muster.model.nodes import NewNode
from muster.remote.job.launch import command_for
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken, breaks_line
from tests.muster import fleet

SKUS = ("cpu-generic", "h100-sxm-8")
YAML = """\
nodes:
  - name: gpu-0001
    host: 10.0.0.1
    sku: h100-sxm-8
    port: 2222
    user: ops
    rack: 12
    pool: rack-12
    work_dir: /var/lib/muster
    labels: {team: training, row: 3}
    launch: {kind: podman, image: "nvcr.io/pytorch:26.08", gpus: true, env: {NCCL_DEBUG: INFO}}
    bmc: {url: "https://10.1.0.1", user: ops, password_env: MUSTER_BMC_PASSWORD}
  - {name: gpu-0002, host: gpu-0002.example.org, sku: cpu-generic, launch: {kind: venv, path: /opt/venv}}
"""
CSV = """\
name,host,sku,port,rack,labels,launch
gpu-0001,10.0.0.1,h100-sxm-8,2222,12,team=training;row=3,"{""kind"": ""venv"", ""path"": ""/opt/venv""}"
gpu-0002,10.0.0.2,cpu-generic,,,,
"""
BAD = {
    "yaml": ("  - {name: gpu-0009, sku: cpu-generic}", "  - {name: gpu-0009, host: h9, sku: no-such-model}"),
    "csv": ("gpu-0009,,cpu-generic,,,,", "gpu-0009,h9,no-such-model,,,,", "../gpu,h9,cpu-generic,,,,"),
}
_FOLDER = tempfile.TemporaryDirectory(prefix="muster-fuzz-")


def _draw(rng: random.Random) -> Sample:
    kind = rng.choice(("yaml", "csv"))
    text = mutate.text(rng, YAML if kind == "yaml" else CSV)
    spoilt = ""
    if rng.random() < 0.3:
        line = rng.choice(BAD[kind])
        text, spoilt = f"{YAML if kind == 'yaml' else CSV}{line}\n", f"{kind} with {line}"
    sent = text.encode("utf-8", "surrogatepass")
    return Sample((kind, mutate.raw(rng, sent) if not spoilt and rng.random() < 0.1 else sent), spoilt)


def _read(sample: Sample) -> Taken:
    kind, sent = sample.data
    path = Path(_FOLDER.name) / f"fleet.{kind}"
    path.write_bytes(sent)
    try:
        nodes = inventory.load(path, SKUS)
        pinned = inventory.pin(nodes, lambda node: fleet.host_key(f"{node.host}:{node.port}"))
    except inventory.BadInventory as refused:
        return Taken(refused.problems)
    found = [node for _, node in pinned]
    return Taken(_texts(found), _injections(found), well=True)


def _texts(nodes: list[NewNode]) -> Iterator[str]:
    for node in nodes:
        yield from (node.name, node.host, node.user, node.rack, node.pool, node.work_dir)
        yield from (text for pair in node.labels.items() for text in pair)


def _injections(nodes: list[NewNode]) -> Iterator[str]:
    for node in nodes:
        for field in ("host", "user", "name"):
            if getattr(node, field).startswith("-"):
                yield f"{field} {getattr(node, field)!r} is taken for an option"
        words = command_for(node.launch, "/w/agents/a.pyz", ["run"], key="k")
        if shlex.split(shlex.join(words)) != words or any(breaks_line(word) for word in words):
            yield f"the command of {dataclasses.asdict(node)['launch']}"


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=32 * 2**20)
