"""A healthy node's result for any SKU, stage and level, made from what the SKU requires; tests then spoil it."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import Judgement
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import needs, source_units, stage_probes
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage import judge as judging
from muster_criteria.stage.case import Case as JudgeCase
from tests.muster_criteria.violations import violations

CPUS = 4

# A healthy value for every metric that the shipped SKUs require: what an ordinary machine would report.
TEXTS = {
    "recovery_action": "none",
    "throttle_reason": "none",
    "cpu_model": "Some CPU",
    "gpu_model": "NVIDIA H100 80GB HBM3",
    "cpu_microcode": "0x1",
    "kernel": "6.8",
    "os": "Linux",
    "boot_id": "b",
    "serial_system": "s",
    "serial_board": "s",
    "gpu_uuid": "GPU-1",
    "gpu_serial": "1",
    "vbios": "96",
    "driver_version": "570",
    "fabric_state": "completed",
    "cuda_version": "12.8",
    "gemm_accumulator": "float32",
    "golden_key": "key=1",
    "full_entropy_digest": "0",
}
NUMBERS = {
    "cpu_sockets": 1.0,
    "cpu_cores": CPUS,
    "cpu_threads": CPUS,
    "memory_total": 64.0,
    "clock_synchronised": 1.0,
    "application_clock_default": {"gpu": 1980.0},
    "burn_rate": {"cpu": 40.0, "gpu": 740.0},
    "burn_rate_drop": 1.0,
    "host_burn_rate": 90.0,
    "host_cores": CPUS,
    "cpu_quota": 100.0,
    "cpu_share": 99.0,
    "burn_rate_per_clock": 461.0,
    "gemm_checked_elements": 1e6,
    "gemm_checked_fraction": 100.0,
    "memory_tested": {"memory": 8.0, "gpu": 76.0},
    "memory_coverage": 97.0,
    "memory_burn_tested": 1.0,
    "round_trip_cores": CPUS,
    "gemm_rate": {"cpu": 50.0, "node": 190.0, "gpu": {"bf16": 740.0, "tf32": 370.0, "fp8": 1200.0}},
    "gemm_peak_share": 60.0,
    "gemm_scaling": 95.0,
    "gemm_rate_per_clock": {"gpu": {"bf16": 461.0, "tf32": 230.0, "fp8": 749.0}},
    "gemm_clock": 1620.0,
    "memory_bandwidth": {"memory": 48.0, "gpu": 2850.0},
    "pcie_bandwidth": 51.5,
    "pcie_bandwidth_together": 51.5,
    "peer_bandwidth": 382.0,
    "disk_write_rate": 1500.0,
    "disk_read_rate": 1500.0,
    "collective_busbw": 1.0,
    "soak_rate": {"cpu": 90.0, "gpu": 740.0},
    "soak_rate_drop": 1.0,
    "load_share": 99.0,
    "pulse_share": 97.0,
    "sensor_share": 100.0,
    "hbm_total": 79.6,
    "ecc_mode": 1.0,
    "inforom_valid": 1.0,
    "pcie_generation_max": 5.0,
    "pcie_generation": 5.0,
    "pcie_width": 16.0,
    "pcie_generation_loaded": 5.0,
    "nvlink_active": 18.0,
    "nvlink_speed": 50.0,
    "fabric_healthy": 1.0,
    "fabric_cliques": 1.0,
    "xids_seen": 1.0,
    "power_limit": 700.0,
    "persistence_mode": 1.0,
    "temperature_max": 66.0,
    "hbm_temperature_max": 75.0,
    "power_mean": 690.0,
    "thermal_resistance": 0.06,
    "clock_median": 1620.0,
}


@functools.cache
def shipped(name: str) -> Sku:
    """A SKU that comes with Muster, read once: nothing can change it, and reading takes longer than many a test."""
    return load_sku(name)


def value_of(metric: str, kind: str, labels: dict[str, str]) -> float:
    """A healthy number; counters and mismatches are zero."""
    value: Any = NUMBERS.get(metric, 0.0)
    for key in (kind, labels.get("dtype")):
        value = value[key] if isinstance(value, dict) and key in value else value
    assert isinstance(value, (int, float)), (metric, kind, labels)
    return float(value)


def units_of(sku: Sku) -> dict[tuple[str, str], str]:
    """Units that the limits and derivations expect; what neither takes may be in any."""
    limits = {(limit.metric, limit.device): limit.unit for limit in sku.all_limits if limit.key != "spread_at_most"}
    return source_units(sku.programme) | limits


def measurement(
    probe: str, metric: str, device: str, value: float | str | None, unit: str, **more: Any
) -> dict[str, Any]:
    """One measurement as a node writes it."""
    text = value if isinstance(value, str) else None
    number = None if isinstance(value, str) else value
    return {
        "probe": probe,
        "metric": metric,
        "device": device,
        "unit": unit,
        "value": number,
        "text": text,
        "labels": {},
        "samples": 5,
        "spread": None,
        "note": "",
        **more,
    }


def healthy_raw(sku: Sku, stage: str, level: str = "demo") -> dict[str, Any]:
    """A result in which everything required is measured and well."""
    units = units_of(sku)
    measurements = []
    for need in needs(sku, stage, level):
        for device in _devices(need.requirement.devices, sku):
            metric, kind, labels = (
                need.requirement.metric,
                device.rstrip("0123456789").partition(":")[0],
                dict(need.labels),
            )
            value = TEXTS.get(metric) or value_of(metric, kind, labels)
            unit = "text" if isinstance(value, str) else units.get((metric, kind), "count")
            measurements.append(measurement(need.probe, metric, device, value, unit, labels=labels))
    present = {(m["metric"], m["device"]) for m in measurements}
    counted: list[tuple[str, str, float | str, str]] = [
        *((metric, "node", float(CPUS), "count") for metric in ("cpu_threads", "cpu_cores")),
        *(("gpu_uuid", f"gpu{slot}", "GPU-1", "text") for slot in range(int(sku.devices.get("gpu") or 0))),
    ]
    measurements += [measurement("inventory", *fact) for fact in counted if fact[:2] not in present]
    ends = [
        {"probe": probe, "status": "completed", "reason": "", "started_at": 1.0, "duration_s": 1.0}
        for probe in stage_probes(sku, stage, level)
    ]
    return {
        "schema": "muster.result/1",
        "job_id": "job",
        "node": "node-1",
        "stage": stage,
        "level": level,
        "fence": 1,
        "agent_sha256": "",
        "simulated": False,
        "started_at": 1.0,
        "ended_at": 2.0,
        "end": "completed",
        "partial": False,
        "identity": {"boot_id": "b", "serials": {"system": "s"}},
        "environment": {"kernel": "6.8"},
        "guard": {"busy": False, "evidence": []},
        "probes": ends,
        "measurements": measurements,
        "telemetry_file": None,
        "notes": [],
    }


def _devices(wanted: str, sku: Sku) -> list[str]:
    if not wanted.startswith("each "):
        return [wanted]
    kind = wanted.removeprefix("each ")
    count = sku.devices[kind]  # type: ignore[index]
    return [f"{'gpu' if kind == 'gpu' else 'cpu'}{n}" for n in range(CPUS if count == "inventory" else int(count))]


@dataclasses.dataclass
class Case:
    """A result being spoilt, and how it is judged then. ``sku`` may be replaced before judging."""

    sku: Sku
    raw: dict[str, Any]

    def rows(self, metric: str, device: str | None = None, **labels: str) -> Iterator[dict[str, Any]]:
        """The measurements of a metric, on one device or all, that carry these labels."""
        for found in self.raw["measurements"]:
            if (
                found["metric"] == metric
                and device in (None, found["device"])
                and labels.items() <= found["labels"].items()
            ):
                yield found

    def set(self, metric: str, device: str | None = None, /, *, value: Any, **labels: str) -> Case:
        """Give every such measurement another value (or text)."""
        rows = list(self.rows(metric, device, **labels))
        assert rows, f"no {metric} to set on {device}"
        for row in rows:
            row["text" if isinstance(value, str) else "value"] = value
        return self

    def drop(self, metric: str, device: str | None = None, **labels: str) -> Case:
        """Remove such measurements."""
        gone = [id(row) for row in self.rows(metric, device, **labels)]
        assert gone, f"no {metric} to drop on {device}"
        self.raw["measurements"] = [row for row in self.raw["measurements"] if id(row) not in gone]
        return self

    def add(self, probe: str, metric: str, device: str, value: float | str | None, unit: str, **more: Any) -> Case:
        """Add one measurement."""
        self.raw["measurements"].append(measurement(probe, metric, device, value, unit, **more))
        return self

    def end(self, probe: str, status: str, reason: str = "") -> Case:
        """Let a probe have ended otherwise; a probe that did not complete reports nothing."""
        for end in self.raw["probes"]:
            if end["probe"] == probe:
                end |= {"status": status, "reason": reason}
        self.raw["measurements"] = [row for row in self.raw["measurements"] if row["probe"] != probe]
        return self

    def result(self) -> StageResult:
        """The result as the controller reads it."""
        return parse_result(json.dumps(self.raw).encode())

    def judge(self, **more: Any) -> Judgement:
        """The judgement, with the rules evaluated directly: Great Expectations has tests of its own."""
        stage, level = more.pop("stage", self.raw["stage"]), more.pop("level", self.raw["level"])
        evaluate = more.pop("evaluate", violations)
        return judging.judge(JudgeCase(self.sku, stage, level, self.result(), **more), evaluate=evaluate)

    def limited(self, *limits: Limit, inventory: bool = False) -> Case:
        """Judge by these limits only."""
        self.sku = self.sku.model_copy(update={"limits": limits, "inventory": ()})
        self.sku._physical_peaks = ()
        return self


MakeCase = Callable[..., Case]
