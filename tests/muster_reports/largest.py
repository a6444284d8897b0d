"""The largest reports that a fleet makes: long texts, all devices, all lists full. Every figure is invented."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from muster_criteria.model import Coverage, Gap, Lack, Severity, Verdict
from muster_reports.model import RunReport
from tests.muster_reports.conftest import GPUS, finding, gpu_telemetry, observation, run, stage

WHY = (
    "{device} returned other bits than its golden in {metric}: 1,184 of 67,108,864 words differ, in 3 of 5 repeats, "
    "at 1,980 MHz and 71 °C; its 7 siblings and 212 peers agree with the golden (“h100-sxm-8 2026-02”, σ = 0.4 %) — "
    "run it again after a power cycle, and compare the row remapper's counters before and after it."
)
STAGES = ("intake", "burn_in", "integrity", "performance", "thermal", "fabric")


def eight_gpus() -> RunReport:
    """Each GPU breaks another rule of each of forty metrics in each of six stages."""
    stages = tuple(_stage(name, GPUS, metrics=40) for name in STAGES)
    facts = tuple((f"gpu{n % 8}_{n}_firmware", f"96.00.74.00.{n:02X}/1650523{n:06d} ± µ") for n in range(300))
    headline = "8 of 8 GPUs return other bits than their goldens, in six stages."
    return run("pod-03-rack-17-node-0042", Verdict.FAIL, headline, stages, identity=facts, environment=facts,
               waivers=tuple(WHY.format(device="gpu3", metric="gemm_rate") for _ in range(30)))  # fmt: skip


def block_of_64() -> RunReport:
    """A block in which each of the 64 members is slow or corrupt in each collective."""
    members = tuple(f"pod-03-rack-{n // 4:02d}-node-{n:04d}" for n in range(64))
    stages = tuple(_stage(name, members, metrics=12) for name in ("rendezvous", "integrity", "fabric"))
    headline = "64 of 64 members of the block are slow or return other bits."
    return run(members[7], Verdict.FAIL, headline, stages, dag_id="cluster_qualification")


def breaker() -> RunReport:
    """A verdict held by the circuit breaker, which names the fifty nodes that were withdrawn before."""
    names = ", ".join(f"pod-03-rack-{n // 4:02d}-node-{n:04d}" for n in range(50))
    return dataclasses.replace(
        eight_gpus(), breaker=f"open: {names} were withdrawn in 24 h", why_held=f"open for {names}"
    )


def _stage(name: str, devices: tuple[str, ...], metrics: int):
    found = tuple(
        finding(device, f"{name}_rate_of_pattern_{n:02d}", f"{500 + n}.25 TFLOPS on {device}", "≥ 620 TFLOPS ± 0.4 %",
                severity=Severity.CRITICAL if n % 2 else Severity.WARNING, id=f"{name}-{n}-{device}",
                labels=(("dtype", "bf16"), ("message", f"{n} MiB")), rule=f"peers_{place % 4}",
                source="peer snapshot 2026-02-11, 212 nodes of the SKU h100-sxm-8 in nine racks, level “standard”",
                summary=WHY.format(device=device, metric=f"{name}_rate_of_pattern_{n:02d}"))
        for n in range(metrics) for place, device in enumerate(devices)
    )  # fmt: skip
    seen = tuple(
        observation(f"{name}_rate_of_pattern_{n:02d}", device, 500.0 + n, "TFLOPS", floor=620.0, ok=False,
                    labels=(("dtype", "bf16"), ("message", f"{n} MiB")), source="peer snapshot 2026-02-11, 212 nodes")
        for n in range(metrics) for device in devices
    )  # fmt: skip
    lacking = tuple(
        Gap(Lack.PROBE_ENDED, "the probe timed out", f"{name}_latency[message={n}]", devices[n % 8]) for n in range(400)
    )
    return stage(
        name, Verdict.FAIL, findings=found, observations=seen, coverage=Coverage(900, 500, 500, lacking),
        reason=WHY.format(device="gpu0 to gpu7", metric=name), notes=tuple(WHY for _ in range(20)),
        probes=tuple((f"{name}_probe_{n}", "crashed", WHY) for n in range(20)), telemetry=gpu_telemetry(300),
    )  # fmt: skip


LARGEST: dict[str, Callable[[], RunReport]] = {make.__name__: make for make in (eight_gpus, block_of_64, breaker)}
