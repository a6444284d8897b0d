"""Sample reports: what the mails are tried on. Every figure in them is invented for the test and says so as source."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import random
from collections.abc import Callable

import pytest

from muster_criteria.model import (
    Action,
    Coverage,
    FaultClass,
    Finding,
    Gap,
    Judgement,
    Lack,
    Observation,
    Severity,
    Verdict,
)
from muster_reports.model import RunReport, Series, StageReport

START = datetime.datetime(2026, 3, 2, 8, 0, tzinfo=datetime.UTC)
SAMPLE = "sample figure of the tests"
GPUS = tuple(f"gpu{slot}" for slot in range(8))


def observation(metric: str, device: str, value: float | None, unit: str, **more: object) -> Observation:
    blank = Observation("probe", metric, device, unit, value, None, (), 5, 0.01, None, None, SAMPLE, True)
    return dataclasses.replace(blank, **more)


def finding(device: str, metric: str, observed: str, expected: str, **more: object) -> Finding:
    blank = Finding(
        rule="floor",
        metric=metric,
        device=device,
        severity=Severity.CRITICAL,
        fault_class=FaultClass.GPU,
        action=Action.RMA,
        observed=observed,
        expected=expected,
        source=SAMPLE,
        summary=f"{device} reached {observed} in {metric} where {expected} is expected.",
    )
    return dataclasses.replace(blank, **more)


def curve(series: str, device: str, unit: str, seconds: int, level: float, rise: float, noise: float) -> Series:
    chance = random.Random(f"{series} {device} {level}")
    values = tuple(level + rise * (1 - math.exp(-t / 40)) + chance.gauss(0, noise) for t in range(seconds))
    return Series(series, device, unit, tuple(float(t) for t in range(seconds)), values)


def gpu_telemetry(seconds: int, gpus: tuple[str, ...] = GPUS, hot: str | None = None) -> tuple[Series, ...]:
    lines = []
    for place, gpu in enumerate(gpus):
        is_hot = gpu == hot
        lines.append(curve("temperature", gpu, "°C", seconds, 36 + place * 0.6, 49 if is_hot else 27, 0.5))
        lines.append(curve("clock", gpu, "MHz", seconds, 1900 - place * 3, -520 if is_hot else -140, 12))
        lines.append(curve("power", gpu, "W", seconds, 130, 380 if is_hot else 540 - place * 4, 8))
    return tuple(lines)


def stage(name: str, verdict: Verdict = Verdict.PASS, *, required: int = 10, start_s: float = 0, **more: object):
    judged = {
        "reason": f"{required} of {required} figures within their limits.",
        "coverage": Coverage(required, required, required),
        "findings": (),
        "observations": (),
        "notes": (),
    }
    judgement = Judgement(
        stage=name, level="demo", verdict=verdict, simulated=bool(more.pop("simulated", False)), sku="sample",
        sku_version="2026-02", **(judged | {key: more.pop(key) for key in list(more) if key in judged}),
    )  # fmt: skip
    defaults = {
        "started_at": START + datetime.timedelta(seconds=start_s),
        "duration_s": 93.4,
        "probes": ((f"{name}_probe", "completed", ""),),
    }
    return StageReport(judgement=judgement, **(defaults | more))


def run(node: str, verdict: Verdict, headline: str, stages: tuple[StageReport, ...], **more: object) -> RunReport:
    blank = RunReport(
        node=node,
        sku="h100-sxm-8",
        run_id=f"{node}__new-hardware",
        dag_id="node_qualification",
        reason="new hardware",
        simulated=False,
        verdict=verdict,
        headline=headline,
        state_before="validation",
        state_after="quarantine" if verdict is Verdict.FAIL else "qualified",
        started_at=START,
        ended_at=START + datetime.timedelta(seconds=512),
        identity=(
            ("hostname", node),
            ("boot_id", "6f0e9c7a-44a2-4a0f-9a55-0f2f5d9f5a11"),
            ("serial_system", "S411823X"),
        ),
        environment=(("kernel", "6.8.0-52-generic"), ("os", "Ubuntu 24.04"), ("torch", "2.13.0"), ("driver", "580.65")),
        stages=stages,
        run_url=f"http://127.0.0.1:8080/dags/node_qualification/runs/{node}__new-hardware",
        result_json=json.dumps({"node": node, "sample": True}),
    )
    return dataclasses.replace(blank, **more)


def cpu_pass() -> RunReport:
    rates = tuple(
        observation("gemm_rate", f"cpu{n}", 61.5 + n, "GFLOPS", labels=(("dtype", "fp32"),), floor=None) for n in (0, 1)
    )
    shares = tuple(
        observation("gemm_peak_share", f"cpu{n}", 88.2 + n, "%", labels=(("dtype", "fp32"),), floor=40.0)
        for n in (0, 1)
    )
    exact = tuple(
        observation("gemm_mismatches", f"cpu{n}", 0, "count", labels=(("dtype", "int8"),), ceiling=0.0) for n in (0, 1)
    )
    clocks = tuple(curve("clock", f"cpu{n}", "MHz", 60, 3400, -250, 20) for n in (0, 1))
    loads = (curve("load", "node", "count", 60, 0.2, 2.0, 0.05),)
    stages = (
        stage("intake", required=14, duration_s=2.1),
        stage("burn_in", duration_s=61.0, telemetry=clocks + loads),
        stage("integrity", observations=exact, duration_s=44.0),
        stage("performance", observations=rates + shares, duration_s=38.0, telemetry=clocks),
        stage("thermal", duration_s=31.0),
    )
    headline = "All 54 required figures measured and within their limits."
    return run("this-machine", Verdict.PASS, headline, stages, sku="cpu-generic")


def missing_gpu() -> RunReport:
    seen = tuple(gpu for gpu in GPUS if gpu != "gpu5")
    lost = finding(
        "gpu5", "gpu_count", "7 GPUs", "8 GPUs", rule="expected_devices", fault_class=FaultClass.GPU,
        action=Action.RESEAT, summary="gpu5 is missing: 7 of the 8 GPUs that the SKU promises answered.",
    )  # fmt: skip
    lacking = ("gpu_model", "hbm_total", "ecc_mode", "pcie_width", "nvlink_active")
    intake = stage(
        "intake", Verdict.FAIL, simulated=True, required=42, findings=(lost,), duration_s=3.2,
        reason="gpu5 is missing.",
        coverage=Coverage(42, 37, 37, tuple(Gap(Lack.NO_ANSWER, "no device", metric, "gpu5") for metric in lacking)),
        observations=tuple(observation("hbm_total", gpu, 79.6, "GiB", floor=79.0) for gpu in seen),
    )  # fmt: skip
    not_run = tuple(
        (name, "intake failed, and it blocks") for name in ("burn_in", "integrity", "performance", "thermal")
    )
    headline = "gpu5 is missing: 7 of 8 GPUs answered."
    return run("sim-h100-03", Verdict.FAIL, headline, (intake,), simulated=True, not_run=not_run, state_before="intake")


def hot_gpu() -> RunReport:
    hot = finding(
        "gpu3", "temperature_max", "85.6 °C", "≤ 80 °C", rule="ceiling", fault_class=FaultClass.COOLING,
        action=Action.INSPECT, summary="gpu3 reached 85.6 °C under load, 5.6 °C over its ceiling, while its siblings "
        "stayed below 68 °C.",
    )  # fmt: skip
    slow = finding(
        "gpu3", "gemm_rate", "548 TFLOPS", "≥ 620 TFLOPS", fault_class=FaultClass.COOLING, action=Action.INSPECT,
        labels=(("dtype", "bf16"),), confidence=0.8, severity=Severity.WARNING,
    )  # fmt: skip
    rates = tuple(
        observation("gemm_rate", gpu, 548.0 if gpu == "gpu3" else 690.0 + n, "TFLOPS", labels=(("dtype", "bf16"),),
                    floor=620.0, ok=gpu != "gpu3")
        for n, gpu in enumerate(GPUS)
    )  # fmt: skip
    heat = tuple(
        observation("temperature_max", gpu, 85.6 if gpu == "gpu3" else 64.0 + n * 0.6, "°C", ceiling=80.0,
                    ok=gpu != "gpu3")
        for n, gpu in enumerate(GPUS)
    )  # fmt: skip
    serials = tuple(
        observation("gpu_serial", gpu, None, "text", text=f"16505230711{n:02d}") for n, gpu in enumerate(GPUS)
    )
    bandwidth = tuple(
        observation("memory_bandwidth", gpu, 2900.0 + n * 3, "GB/s", labels=(("op", "copy"),))
        for n, gpu in enumerate(GPUS)
    )
    stages = (
        stage("intake", required=42, observations=serials, duration_s=2.4, simulated=True),
        stage("burn_in", duration_s=300, telemetry=gpu_telemetry(300, hot="gpu3"), simulated=True),
        stage("integrity", duration_s=47, simulated=True),
        stage("performance", Verdict.WARN, findings=(slow,), observations=rates + bandwidth, simulated=True,
              coverage=Coverage(24, 24, 16, (), tuple(
                  Gap(Lack.UNJUDGED, "no floor", "memory_bandwidth[op=copy]", gpu) for gpu in GPUS)),
              reason="gpu3 is slow in gemm_rate (bf16); 8 figures could not be judged.",
              probes=(("gemm_rate", "completed", ""), ("nvbandwidth", "skipped", "no such tool on the node")),
              telemetry=gpu_telemetry(80, hot="gpu3"), duration_s=80),
        stage("thermal", Verdict.FAIL, findings=(hot,), observations=heat, simulated=True,
              reason="gpu3 overheats under load.", telemetry=gpu_telemetry(150, hot="gpu3"), duration_s=150,
              attempts=2),
    )  # fmt: skip
    headline = "gpu3 overheats under load (85.6 °C, limit 80 °C) and slows down."
    return run(
        "sim-h100-05", Verdict.FAIL, headline, stages, simulated=True, forced="rack 12 is drained, user asleep <3",
        waivers=("nvbandwidth on this node: not installed until the next image (A. Weber, until 2026-04-01)",),
    )  # fmt: skip


def long_lists() -> RunReport:
    metrics = [f"memory_mismatches_of_pattern_{n:03d}" for n in range(60)]
    broken = tuple(
        finding(gpu, metric, f"{n + 1:,} wrong words", f"0 wrong words in {place} GiB", rule="exact",
                fault_class=FaultClass.HBM, labels=(("pattern", f"p{place}"),))
        for place, metric in enumerate(metrics)
        for n, gpu in enumerate(GPUS)
    )  # fmt: skip
    rows = tuple(observation(metric, gpu, 7.0, "count", ceiling=0.0, ok=False) for metric in metrics for gpu in GPUS)
    lacking = tuple(Gap(Lack.PROBE_ENDED, "probe timed out", "gemm_rate[dtype=fp8]", f"gpu{n}") for n in range(600))
    every = stage(
        "integrity", Verdict.FAIL, findings=broken, observations=rows, coverage=Coverage(1600, 1000, 1000, lacking),
        reason="All eight GPUs corrupt memory.", notes=tuple(f"note {n}" for n in range(300)),
        probes=tuple((f"probe_{n}", "crashed", "segmentation fault") for n in range(300)),
        telemetry=gpu_telemetry(300),
    )  # fmt: skip
    facts = tuple((f"fact_{n}", "x" * 200) for n in range(900))
    headline = "gpu0 to gpu7 corrupt memory in all sixty patterns."
    return run("node-07", Verdict.FAIL, headline, (every,), identity=facts, environment=facts)


HOSTILE = (
    "<script>alert(1)</script><img src=http://evil.example/x.png>\r\nBcc: victim@example.org\r\n\r\n"
    "\x1b[31mred\x1b[0m\x1b]0;title\x07 \u202egnp.exe\u202c {{ 7*7 }} {% raw %} $\\frac{x}$ \"'` \udcff\x00 日本 "
)


def hostile() -> RunReport:
    """Every text that comes from outside, as an attacker would like it."""
    evil = HOSTILE * 30
    labels = ((evil, evil),)
    found = finding(evil, evil, evil, evil, rule=evil, source=evil, summary=evil, labels=labels)
    seen = observation(evil, evil, 1e300, evil, labels=labels, source=evil, floor=1.0, ok=False, note=evil)
    bad = tuple(
        Series(name, evil, evil, (0.0, float("nan"), 2.0, 3.0), (1.0, 2.0, float("inf"), 4.0, 5.0))
        for name in ("temperature", "clock", "power", evil)
    )
    gaps = (Gap(Lack.REFUSED, evil, evil, evil),) * 50
    rough = stage(
        evil, Verdict.FAIL, findings=(found,) * 3, observations=(seen,), reason=evil, notes=(evil,) * 50,
        coverage=Coverage(9, 1, 0, gaps, gaps), probes=((evil, evil, evil),) * 50, telemetry=bad,
    )  # fmt: skip
    return run(
        evil, Verdict.FAIL, evil, (rough,) * 5, sku=evil, run_id=evil, dag_id=evil, reason=evil, state_before=evil,
        state_after="quarantine" + evil, identity=((evil, evil),) * 100, environment=((evil, evil),) * 100,
        not_run=((evil, evil),) * 9, waivers=(evil,) * 9, forced=evil, run_url="javascript:alert(1)",
        result_json=json.dumps({"x": evil})[:-2] + "\udcff\"}",
    )  # fmt: skip


def empty() -> RunReport:
    headline = "The node could not be reached: connection refused by 10.0.0.7 port 22."
    return run(
        "node-09", Verdict.INCONCLUSIVE, headline, (), identity=(), environment=(), run_url=None,
        state_before="registered", state_after="registered",
        not_run=(("intake", "the node could not be reached"), ("burn_in", "intake did not run")),
    )  # fmt: skip


SAMPLES: dict[str, Callable[[], RunReport]] = {
    make.__name__: make for make in (cpu_pass, missing_gpu, hot_gpu, long_lists, hostile, empty)
}


@pytest.fixture(scope="session")
def samples() -> dict[str, RunReport]:
    """The sample reports by name."""
    return {name: make() for name, make in SAMPLES.items()}
