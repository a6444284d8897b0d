"""NVIDIA's nccl-tests inside the node, where installed: bus bandwidth at the largest size.

A rate counts only if the payload was checked and NCCL's own log proves algorithm and transport. The log goes to a file:
on stdout NCCL writes into the middle of rows, which nccl-tests print in two parts.
"""

from __future__ import annotations

import pathlib
import shutil

from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.nccl_log import Proof, carrier, parse_nccl_log
from muster_node.tools.nccl_tests import NcclRun, parse_nccl_tests
from muster_node.tools.output import BadOutput
from muster_node.tools.run import COOL_PARAMS, cool_down, real_only, result_of

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "sendrecv": "sendrecv_perf",
}
_LOGGED_AS = {"sendrecv": "send_recv"}
"""Operations that ``nccl_log`` knows by another name than nccl-tests."""


class NcclTests(Probe):
    """NVIDIA's nccl-tests over all GPUs of the node."""

    name = "nccl_tests"
    stage = "performance"
    doc = "nccl-tests on all GPUs of the node, payload checked, with what carried it"
    params = {
        "ops": Param(list(PROGRAMS), "operations to run"),
        "max_size": Param("8G", "largest buffer, as nccl-tests write it"),
        "iterations": Param(20, "timed repeats of each size"),
        "limit_s": Param(300.0, "seconds for each program"),
        **COOL_PARAMS,
    }
    metrics = {
        "nccl_busbw": Metric("GB/s", "bus bandwidth at the largest size, by operation, with NVLS on or off"),
        "nccl_mismatches": Metric("count", "values out of bounds in the checked payload, by operation"),
        "nccl_absent_gpus": Metric("count", "GPUs that answer and did not take part, by operation"),
    }
    needs = ("gpu", "tool:all_reduce_perf")

    def run(self, context: Context) -> None:
        """Run every program that is there. Raises Skip on simulated hardware, RuntimeError if one gave no results."""
        real_only(context)
        note = cool_down(context)
        count = len(context.hardware.devices("gpu"))
        broken = []
        for op in context.params["ops"]:
            if op not in PROGRAMS:
                raise Skip("there is no operation {!r} (there are: {})".format(op, ", ".join(PROGRAMS)))
            program = shutil.which(PROGRAMS[op])
            if program is None:
                context.emit("nccl_busbw", "node", labels={"op": op}, note=f"{PROGRAMS[op]} is not installed")
                continue
            context.progress(f"{PROGRAMS[op]} on {count} GPUs")
            try:
                found, proof = _measured(context, op, program, count)
                _emit(context, op, count, found, proof, note)
            except BadOutput as error:
                broken.append(f"{PROGRAMS[op]} {error}")
        if broken:
            raise RuntimeError("; ".join(broken))


def _command(program: str, context: Context, count: int) -> list[str]:
    size, iterations = str(context.params["max_size"]), str(int(context.params["iterations"]))
    return [program, "-b", "8", "-e", size, "-f", "2", "-g", str(count), "-n", iterations, "-c", "1"]


def _measured(context: Context, op: str, program: str, count: int) -> tuple[NcclRun, Proof]:
    log = pathlib.Path(context.scratch / f"nccl-{op}.log")
    logging = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING", "NCCL_DEBUG_FILE": str(log)}
    limit_s = context.params["limit_s"]
    command = _command(program, context, count)
    found = result_of(context, command, limit_s, parse_nccl_tests, lambda run: run.wrong, environment=logging)
    logged = parse_nccl_log(log.read_text("latin-1") if log.exists() else "")
    return found, carrier(_LOGGED_AS.get(op, op), found.largest, found.ranks, logged, [logged])


def _emit(context: Context, op: str, count: int, found: NcclRun, proof: Proof, note: str) -> None:
    labels, size = {"op": op}, f"{found.largest} bytes"
    why_not = proof.why_not and "what carried it is not proven: " + proof.why_not
    if found.ranks < 2:  # nccl-tests report 0 GB/s then
        why_not = "one GPU alone exchanges nothing"
    context.emit(
        "nccl_busbw",
        "node",
        value=None if why_not else found.busbw[found.largest],
        # Rates with and without NVLS are not comparable.
        labels=labels if why_not else {**labels, "nvls": "on" if proof.in_switch else "off"},
        samples=int(context.params["iterations"]),
        note="; ".join(filter(None, (why_not or proof.carried, size, note))),
    )
    context.emit("nccl_mismatches", "node", value=found.wrong, labels=labels)
    context.emit("nccl_absent_gpus", "node", value=max(0, count - found.ranks), labels=labels)
