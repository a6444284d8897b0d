"""Small true-to-life values for tests of the records: nodes, results, judgements, telemetry."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import functools
import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import select

from muster import store
from muster.judging import verdict as verdicts
from muster.judging.verdict import Recorded
from muster.model.nodes import Lease, NewNode
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.store.database import engine
from muster.store.database.fabric import LoadedPlaceRow
from muster_criteria.fleet.peers.snapshot import Snapshot, build_snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.readings import readings_of, together
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import (
    Action,
    Coverage,
    FaultClass,
    Finding,
    Judgement,
    Observation,
    Severity,
    Verdict,
)
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from muster_node.contract import Measurement, ProbeOutcome, Result

DAG = "node_qualification"


def loaded_places() -> dict[str, RunKey]:
    """{place: run} of all rows, those left over included."""
    with engine.reading() as session:
        return {row.place: RunKey(row.dag_id, row.run_id) for row in session.scalars(select(LoadedPlaceRow))}


@functools.cache
def sku() -> Sku:
    return load_sku("cpu-generic")


def host_key(of: str) -> str:
    return "ssh-ed25519 " + base64.b64encode(hashlib.sha512(of.encode()).digest()[:51]).decode()


def new_node(name: str = "gpu-0001", **changes: object) -> NewNode:
    node = NewNode(name=name, host=f"{name}.example", host_key=host_key(name), sku="cpu-generic")
    return dataclasses.replace(node, **changes)


def result(
    stage: str = "intake",
    *,
    node: str = "gpu-0001",
    serials: dict[str, str] | None = None,
    simulated: bool = False,
    measurements: Sequence[Measurement] | None = None,
    note: str = "",
    environment: Mapping[str, str] | None = None,
) -> tuple[StageResult, bytes]:
    """A result as a node would send it, parsed, and its bytes."""
    figures = (
        measurements if measurements is not None else [Measurement("gemm_rate", "gemm_rate", "gpu0", "TFLOPS", 612.5)]
    )
    sent = Result(
        job_id="job", node=node, stage=stage, level="short", fence=1, agent_sha256="ab" * 32, simulated=simulated,
        started_at=1.7e9, ended_at=1.7e9 + 90, end="completed", partial=False,
        identity={"boot_id": "b-1", "hostname": node, "serials": serials or {}},
        environment={"kernel": "6.1", **(environment or {})},
        guard={"busy": False, "evidence": []},
        probes=[ProbeOutcome("gemm_rate", "completed", "", 1.7e9, 80.0)], measurements=list(figures),
        notes=[note] if note else [],
    )  # fmt: skip
    raw = sent.to_json().encode()
    return parse_result(raw), raw


def judgement(
    stage: str = "intake",
    verdict: Verdict = Verdict.PASS,
    *,
    coverage: Coverage | None = None,
    findings: tuple[Finding, ...] = (),
    simulated: bool = False,
    level: str = "short",
) -> Judgement:
    seen = Observation(
        "gemm_rate", "gemm_rate", "gpu0", "TFLOPS", 612.5, None, (), 1, None, 600.0, None, "measured 2026", True
    )
    return Judgement(
        stage=stage, level=level, verdict=verdict, reason=f"{stage}: {verdict}",
        coverage=coverage or Coverage(1, 1, 1), findings=findings, observations=(seen,), simulated=simulated,
        sku="cpu-generic", sku_version="1+abc",
    )  # fmt: skip


def judged(measurements: Sequence[Measurement], *, floor: float) -> Judgement:
    """A passing judgement that compared each of the measurements with ``floor``."""
    seen = tuple(
        Observation(
            each.probe, each.metric, each.device, each.unit, each.value, None, tuple(each.labels.items()), 1, None,
            floor, None, "measured 2026", (each.value or 0.0) >= floor,
        )
        for each in measurements
    )  # fmt: skip
    return dataclasses.replace(judgement(), observations=seen)


def peers(rates: Iterable[float]) -> Snapshot:
    """The statistics of one GPU's gemm_rate (TFLOPS) on as many nodes."""
    rows = [Measurement("gemm_rate", "gemm_rate", "gpu0", "TFLOPS", float(rate)) for rate in rates]
    known = {"at": 1e9, "run": "r", "sku": "cpu-generic", "environment": {}}
    read = together(readings_of([row], node=f"p{number}", **known) for number, row in enumerate(rows))
    compared = [Comparison(metric="gemm_rate", device="gpu", unit="TFLOPS", worse="lower")]
    return build_snapshot(read, datetime.datetime.now(datetime.UTC), compared)


FINDING = Finding(
    rule="floor", metric="gemm_rate", device="gpu3", severity=Severity.CRITICAL, fault_class=FaultClass.GPU,
    action=Action.RMA, observed="480 TFLOPS", expected="≥ 600 TFLOPS", source="measured 2026",
    summary="gemm_rate on gpu3 is 480 TFLOPS, expected ≥ 600 TFLOPS.", labels=(("dtype", "bf16"),),
)  # fmt: skip


def telemetry(seconds: int, devices: Sequence[str] = ("gpu0",), series: str = "temperature") -> bytes:
    rows = (
        json.dumps({"t": 5000.0 + second, "series": series, "device": device, "value": 40.0 + second % 50 + index})
        for second in range(seconds)
        for index, device in enumerate(devices)
    )
    return gzip.compress("\n".join(rows).encode())


def finding(**changes: object) -> Finding:
    return dataclasses.replace(FINDING, **changes)


def begin(
    node: str = "gpu-0001", run_id: str = "", *, dag_id: str = "", level: str = "short", **options: object
) -> Lease:
    """A run of an enrolled node, begun and holding it."""
    key = RunKey(dag_id or DAG, run_id or f"{node}__new")
    store.runs.begin(key, node, level, "new", **options)
    return store.leases.acquire(node, key)


def do_stage(
    lease: Lease,
    stage: str,
    verdict: Verdict = Verdict.PASS,
    environment: Mapping[str, str] | None = None,
    serials: dict[str, str] | None = None,
    **fields: object,
) -> None:
    parsed, raw = result(stage, node=lease.node, environment=environment, serials=serials)
    store.runs.begin_stage(lease.key, stage, node=lease.node)
    judged = judgement(stage, verdict, **fields)
    record(lease.key, parsed, judged, raw, node=lease.node)


def record(
    key: RunKey,
    result: StageResult | None,
    judged: Judgement,
    raw: bytes | None = None,
    telemetry: bytes | None = None,
    attempts: int = 1,
    *,
    node: str = "",
    chassis: bytes | None = None,
) -> Recorded:
    """Store what an attempt brought, and its verdict as the waivers leave it."""
    return verdicts.record(key, judged, store.stages.Sent(result, raw, telemetry, attempts, chassis), node=node)


def qualify(
    node: str = "gpu-0001",
    run_id: str = "",
    environment: Mapping[str, str] | None = None,
    *,
    level: str = "short",
    stages: Sequence[str] = STAGES,
    serials: dict[str, str] | None = None,
) -> Lease:
    """The whole of a passing run, or of one that tests only ``stages``; the lease is freed."""
    lease = begin(node, run_id, level=level, required_stages=stages)
    for stage in stages:
        do_stage(lease, stage, environment=environment, serials=serials, level=level)
    store.runs.finish(lease.key, Verdict.PASS, "All is well.")
    store.leases.release(lease.key, "over")
    return lease


def fail(
    node: str = "gpu-0001", run_id: str = "", *found: Finding, stage: str = "intake", level: str = "short"
) -> Lease:
    """A run that ends with a FAIL of its first stage; the lease is freed."""
    lease = begin(node, run_id, level=level)
    do_stage(lease, stage, Verdict.FAIL, findings=found or (FINDING,), level=level)
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(lease.key, "over")
    return lease
