"""The training of an invented block: four nodes of two GPUs, of which one holds the others up."""

from __future__ import annotations

from muster_criteria.cluster.acceptance.table import training_of
from muster_criteria.cluster.acceptance.values import Comparisons, Member, Training
from muster_criteria.cluster.goodput import Input
from muster_criteria.cluster.model import TRAINING
from muster_criteria.model import Action, FaultClass, Finding, Observation, Severity

SOURCE = "sample figure of the tests"
RATE = Input(4.1e-3, True, "12 failures of this fleet within a year, a sample of the tests", 2.4e-3, 6.6e-3)
RECIPE = "8b: N = 7,504,924,672 without the embedding, L = 32, d = 4,096, s = 8,192"


def seen(metric: str, value: float | None, unit: str = "1", device: str = "node", **more: object) -> Observation:
    labels = tuple(sorted((str(key), str(text)) for key, text in dict(more.pop("labels", {})).items()))  # type: ignore[call-overload]
    row = {"text": None, "samples": 200, "spread": 0.01, "floor": None, "ceiling": None, "source": SOURCE,
           "ok": True, "note": "", "probe": TRAINING, **more}  # fmt: skip
    return Observation(metric=metric, device=device, unit=unit, value=value, labels=labels, **row)  # type: ignore[arg-type]


def member(
    name: str, *, sku: str = "h100-sxm-8", slow: str = "", gpus: int = 2, checkpoints: bool = True, faults: bool = True,
    throttled: float = 0.0, gemm: float = 1.0, clock: float = 1.0, scaling: float = 0.81,
) -> Member:  # fmt: skip
    rows = [
        seen("training_devices", float(gpus), "count"),
        seen("scaling", scaling, floor=0.95),
        seen("step_p95_to_p50", 1.02, ceiling=1.05),
        seen("training_recipe", None, "text", text=RECIPE),
        seen("tokens_per_s", 11_400.0, "1/s", labels={"scope": "node"}),
        seen("tokens_per_s", 37_000.0, "1/s", labels={"scope": "block"}),
        seen("step_time", 1.31, "s", labels={"scope": "block", "stat": "p50"}),
        seen("step_time", 1.34, "s", labels={"scope": "block", "stat": "p95"}),
        seen("mfu", 34.1, "%", labels={"scope": "node"}, note=f"5,700 tokens/s a device × 5.147e+10 FLOP; {RECIPE}"),
        seen("mfu", 27.6, "%", labels={"scope": "block"}, note=f"4,625 tokens/s a device × 5.147e+10 FLOP; {RECIPE}"),
    ]
    for slot in range(gpus):
        gpu, is_slow = f"gpu{slot}", slow == f"gpu{slot}"
        rows += [
            seen("step_compute", 1.28 if is_slow else 1.0 + 0.002 * slot, "s", gpu),
            seen("step_wait", 0.03 if is_slow else 0.31, "s", gpu), seen("step_input", 0.002, "s", gpu),
            seen("step_clock", 1980.0 * (clock if is_slow else 1.0), "MHz", gpu),
            seen("gemm_best", 7.0e14 * (gemm if is_slow else 1.0), "FLOP/s", gpu),
            seen("share_of_gemm", 48.0 + slot, "%", gpu, labels={"scope": "block"}),
            seen("throttle_time", throttled if is_slow else 0.0, "s", gpu, labels={"reason": "hw_thermal"},
                 probe="gpu_watch"),
        ]  # fmt: skip
    rows += _checkpoints(gpus) if checkpoints else [seen("shared_path", None, "bool", note="no shared path is named")]
    if faults:
        rows += [seen("fault_detect", 0.9, "s"), seen("fault_restart", 48.0, "s"), seen("fault_lost_work", 6.1, "s")]
    found = ()
    if slow:
        found = (Finding(
            rule="straggler", metric="step_compute", device=slow, severity=Severity.CRITICAL, source=SOURCE,
            fault_class=FaultClass.GPU, action=Action.RMA, expected="≤ 1.05 s", summary=f"{slow} slows the block.",
            observed="1.28 s a step, 28.0 % more than the others, and waits least",
        ),)  # fmt: skip
    return Member(name, sku, False, tuple(rows), found)


def _checkpoints(gpus: int) -> list[Observation]:
    rows = [seen("shared_path", 1.0, "bool"), seen("resume_equal", 1.0, "bool"), seen("checkpoint_bytes", 9.6e10)]
    for direction, seconds in (("save", 11.2), ("load", 7.9)):
        for stat, factor in (("p50", 1.0), ("p95", 1.08)):
            rows.append(seen(
                f"checkpoint_{direction}", seconds * factor, "s", labels={"stat": stat}, spread=0.04, samples=5
            ))  # fmt: skip
        rows.append(seen("checkpoint_rate", 9.6e10 / seconds / 1e9, "GB/s", labels={"direction": direction}))
    for nodes, share in (("one", 1.0), ("all", 0.4)):
        for direction, rate in (("write", 6.0), ("read", 9.0)):
            rows.append(seen("shared_rate", rate * share, "GB/s", labels={"direction": direction, "nodes": nodes}))
        for op, rate in (("create", 900.0), ("remove", 1_100.0)):
            rows.append(seen("small_files", rate * share, "1/s", labels={"op": op, "nodes": nodes}))
    return rows + [seen("checkpoint_own", 11.0 + slot, "s", f"gpu{slot}") for slot in range(gpus)]


def training(*members: Member, rate: Input = RATE, **compared: object) -> Training:
    """By default four nodes, one of which has a GPU that is throttled."""
    chosen = members or (
        *(member(f"gpu-000{at}") for at in (1, 2, 3)),
        member("gpu-0004", slow="gpu1", throttled=212.0),
    )
    given = {"earlier": {"scaling": (0.968, 4), "mfu block": (33.4, 4), "tokens_per_s": (5640.0, 4)}, **compared}
    found = training_of(chosen, Comparisons(rate, 8, **given))  # type: ignore[arg-type]
    assert found is not None
    return found
