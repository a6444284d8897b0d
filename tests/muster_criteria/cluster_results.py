"""Results of a healthy block as its members would send them, and what can be wrong with one member."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from muster_criteria.cluster import judge
from muster_criteria.cluster.model import ClusterJudgement, MemberResult
from muster_criteria.measured import parse_result
from muster_criteria.sku_files.model import BlockProgramme
from muster_criteria.sku_files.skus import load_sku

PROGRAMME = load_sku("h100-sxm-8").block

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
PARTS = [(kind, layer) for kind in ("activations", "gradients") for layer in ("0", "head")]
STEPS = 3
KEY = "driver_version=570; gpu_model=NVIDIA H100; torch=2.13"
COLLECTIVES, TRAINING = "cluster_collectives", "cluster_training"


def row(probe: str, metric: str, device: str = "node", **keys: Any) -> dict[str, Any]:
    texts = ("step_digest", "digest_key", "pace_key", "weights_digest", "nvlink_domain")
    unit = "text" if metric in texts else "count"
    return {"probe": probe, "metric": metric, "device": device, "unit": unit, **keys}


class Sent:
    """One member's measurements, healthy until something is changed."""

    def __init__(self, name: str, block: Sequence[str], gpus: int = 2) -> None:
        self.name, self.block = name, block
        self.gpus = [f"gpu{slot}" for slot in range(gpus)]
        self.digests = {
            (gpu, str(step), *part): f"{step}{part}" for gpu in self.gpus for step in range(STEPS) for part in PARTS
        }
        self.wrong_in_itself = dict.fromkeys(self.gpus, 0.0)
        self.keys = dict.fromkeys(self.gpus, KEY)
        self.compute = dict.fromkeys(self.gpus, 1.0)
        self.wait, self.spread, self.steps = 0.02, 0.004, 1
        self.weights = "w"
        self.training = {"scaling": 0.97, "step_p95_to_p50": 1.01, "training_devices": float(gpus)}
        self.alone = 1000.0 * gpus
        self.path_rate: float | None = 40.0
        self.domain = ""
        """Its NVLink domain, of which it reports nothing where that is empty."""
        self.shared_path: float | None = None
        self.storage: list[dict[str, Any]] = []
        """Further rows about the shared path."""
        self.lost_part = ""
        self.loss: float | None = 4.0
        self.mismatches: dict[tuple[str, str], float] = {}
        self.lost: dict[str, str] = {}
        self.lags = dict.fromkeys(OPS, 0.0001)
        self.status = {COLLECTIVES: "completed", TRAINING: "completed"}
        self.dropped: set[str] = set()
        self.end = "completed"

    def apart(self, change: str) -> Sent:
        """Its GPUs have a key of their own, and by it other digests; by a driver their pace is still comparable."""
        self.keys = {gpu: f"{key}; {change}" for gpu, key in self.keys.items()}
        self.digests = {at: text + change for at, text in self.digests.items()}
        return self

    def flip(self, gpu: str = "gpu0", step: int = 1, erratic: bool = False) -> Sent:
        """A GPU whose answer is its own from some part of a step on."""
        for part in PARTS[1:]:
            self.digests[gpu, str(step), *part] += f" spoilt by {self.name} {gpu}"
        self.wrong_in_itself[gpu] = float(len(PARTS) - 1) if erratic else 0.0
        return self

    def lose(self, name: str, why: str = "its process ended in phase training") -> Sent:
        self.lost[name] = why
        return self

    def raw(self) -> dict[str, Any]:
        rows = [r for r in self._rows() if r["metric"] not in self.dropped and self.status[r["probe"]] != "skipped"]
        return {
            "schema": "muster.result/1", "job_id": "j", "node": self.name, "stage": "cluster_validation",
            "level": "demo", "fence": 1, "agent_sha256": "", "simulated": True, "started_at": 1.0, "ended_at": 2.0,
            "end": self.end, "partial": False, "identity": {}, "environment": {}, "guard": {},
            "probes": [
                {"probe": probe, "status": status, "reason": "", "started_at": 1.0, "duration_s": 1.0}
                for probe, status in self.status.items()
            ],
            "measurements": rows, "notes": [] if self.end == "completed" else [f"ended as {self.end}"],
        }  # fmt: skip

    def member(self, **keys: Any) -> MemberResult:
        """As the controller has it, after checking every byte."""
        return MemberResult(self.name, parse_result(json.dumps(self.raw()).encode()), **keys)

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for probe in (COLLECTIVES, TRAINING):
            rows += [
                row(
                    probe,
                    "member_missing",
                    value=float(m in self.lost),
                    labels={"member": m, **({"part": self.lost_part} if self.lost_part and m in self.lost else {})},
                    note=self.lost.get(m, ""),
                )
                for m in self.block
            ]
            rows.append(row(probe, "block_intact", value=float(not self.lost)))
            rows.append(row(probe, "join_lag", value=0.1))
        for op in OPS:
            total = sum(count for (at, _), count in self.mismatches.items() if at == op)
            rows.append(row(COLLECTIVES, "collective_mismatches", value=total, labels={"op": op}))
            labels = {"op": op, "bytes": "1024"}
            rows.append(row(COLLECTIVES, "collective_time", value=0.001, labels=labels))
            rows.append(row(COLLECTIVES, "arrival_lag", value=self.lags[op], labels=labels))
        for (op, sender), count in self.mismatches.items():
            if sender:
                labels = {"op": op, "sender": sender}
                rows.append(row(COLLECTIVES, "collective_mismatches", value=count, labels=labels))
        for (gpu, step, kind, layer), text in self.digests.items():
            labels = {"step": step, **({"kind": kind, "layer": layer} if kind else {})}
            rows.append(row(TRAINING, "step_digest", gpu, text=text, labels=labels))
        for gpu in self.gpus:
            rows.append(row(TRAINING, "digest_key", gpu, text=self.keys[gpu]))
            of_pace = [part for part in self.keys[gpu].split("; ") if not part.startswith("driver_version")]
            rows.append(row(TRAINING, "pace_key", gpu, text="; ".join(of_pace)))
            compared = sum(at == gpu for at, *_ in self.digests)
            rows.append(row(TRAINING, "self_mismatches", gpu, value=self.wrong_in_itself[gpu], samples=compared))
            rows.append(row(TRAINING, "step_compute", gpu, value=self.compute[gpu]))
            rows.append(row(TRAINING, "weights_digest", gpu, text=self.weights, labels={"shard": "all"}))
            if self.domain:
                rows.append(row(COLLECTIVES, "nvlink_domain", gpu, text=self.domain))
            sender = {"sender": self.block[self.block.index(self.name) - 1]}
            rows.append(row(TRAINING, "path_rate", gpu, value=self.path_rate, labels=sender))
        rows += [row(TRAINING, metric, value=value) for metric, value in self.training.items()]
        rows.append(row(TRAINING, "weights_digest", text=self.weights))
        for scope, rate in (("node", self.alone), ("block", self.alone * len(self.block))):
            rows.append(row(TRAINING, "tokens_per_s", value=rate, labels={"scope": scope}))
        rows.append(row(TRAINING, "shared_path", value=self.shared_path, note="no shared path is named"))
        rows += self.storage
        slowest = {"value": max(self.compute.values()), "spread": self.spread, "samples": self.steps}
        rows.append(row(TRAINING, "step_compute", **slowest))
        rows.append(row(TRAINING, "step_wait", value=self.wait))
        note = "" if self.loss is not None else "not a finite number (nan)"
        rows.append(row(TRAINING, "loss", value=self.loss, labels={"step": "last"}, note=note))
        return rows


def block(count: int, gpus: int = 2) -> dict[str, Sent]:
    names = [f"n{number}" for number in range(count)]
    return {name: Sent(name, names, gpus) for name in names}


def members(sent: Mapping[str, Sent]) -> list[MemberResult]:
    return [each.member() for each in sent.values()]


def judge_block(results: Sequence[MemberResult], programme: BlockProgramme = PROGRAMME) -> ClusterJudgement:
    return judge.judge_block(results, programme)
