"""What one member of a block sends: parsed and judged with the healthy others, none of which it may fail."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from muster_criteria.cluster.judge import judge_block
from muster_criteria.cluster.model import ClusterJudgement, MemberResult
from muster_criteria.cluster.plan import block_needs
from muster_criteria.cluster.ports import port_limits
from muster_criteria.cluster.watched import watch_limits
from muster_criteria.measured import BadResult, parse_result
from muster_criteria.model import Lack, Verdict
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken
from tests.muster_criteria.cluster_results import PROGRAMME, block, row
from tests.muster_criteria.nodes import shipped

SKU = shipped("h100-sxm-8")
GPUS = 2
LIAR = "n0"
PORT = "nic:mlx5_0"
ODD = (None, -1.0, -1e18, 0.0, 1e-300, 1e18)


def _draw(rng: random.Random) -> Sample:
    sent = {name: each.raw() for name, each in block(rng.choice((2, 3, 4)), GPUS).items()}
    for each in sent.values():
        each["measurements"] += _watched()
    lies: Any = sent[LIAR]
    for _ in range(rng.randrange(4)):
        rng.choice(lies["measurements"])["value"] = rng.choice(ODD)
    if rng.random() < 0.5:
        lies = mutate.document(rng, lies)
    taken = _without_metric(rng, lies) if rng.random() < 0.5 else ""
    return Sample({**sent, LIAR: lies}, taken)


def _watched() -> list[dict[str, Any]]:
    """What is watched under load."""
    ports = {"port_watched": 1.0, "port_down": 0.0}
    gpus = {"watch_clock": 1900.0, "temperature_max": 60.0, "step_clock": 1900.0}
    return [
        row("pair_rails", "port_errors", PORT, value=2.0, labels={"counter": "symbol_error"}),
        *(row("pair_rails", metric, PORT, value=value) for metric, value in ports.items()),
        *(row("gpu_watch", metric, f"gpu{n}", value=value) for metric, value in gpus.items() for n in range(GPUS)),
    ]


def _without_metric(rng: random.Random, result: Any) -> str:
    """Takes a required metric away; returns which, "" if the mutations left no measurements."""
    rows = result.get("measurements") if isinstance(result, dict) else None
    if not isinstance(rows, list) or not all(isinstance(each, dict) for each in rows):
        return ""
    wanted = [need.requirement for need in block_needs(PROGRAMME) if not need.requirement.where_readable]
    metric = rng.choice(wanted).metric
    result["measurements"] = [each for each in rows if each.get("metric") != metric]
    return f"without {metric}"


def _read(sample: Sample) -> Taken:
    limits = {"port_limits": port_limits((*SKU.limits, *SKU.block.limits)), "watch_limits": watch_limits(SKU.limits)}
    members = [
        MemberResult(name, parse_result(json.dumps(each).encode()), devices=GPUS, **limits)
        for name, each in sample.data.items()
    ]
    judged = judge_block(members, PROGRAMME)
    for name, each in judged.members.items():
        failed = [gap.why for gap in each.coverage.missing if gap.code is Lack.JUDGE_FAILED]
        if failed or (name != LIAR and each.verdict is Verdict.FAIL):
            raise AssertionError(f"{name}: {failed or each.reason}")
    well = judged.members[LIAR].verdict in (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL)
    return Taken(_texts(judged), well=well)


def _texts(judged: ClusterJudgement) -> Iterator[str]:
    yield from judged.notes
    for each in judged.members.values():
        yield from (each.reason, *(finding.summary for finding in each.findings))


EDGE = Edge(_draw, _read, (BadResult,), peak_bytes=64 * 2**20)
