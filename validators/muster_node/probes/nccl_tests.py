"""nccl-tests inside the node, where installed: bus bandwidth at the largest size, and proof of what carried it.

A run whose payload was not checked, that broke off, or in which fewer GPUs took part than there are, is told as such.
A rate counts only if NCCL's own log proves by which algorithm and transport the bytes went, as ``collectives`` has it.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from typing import Dict, List, Tuple

from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.nccl_log import Proof, Said, carrier, parse_nccl_log
from muster_node.tools.run import COOL_PARAMS, BadOutput, cool_down, real_only, run_tool

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "sendrecv": "sendrecv_perf",
}
_LOGGED_AS = {"sendrecv": "send_recv"}
"""Operations that ``_nccl_log`` knows by another name than nccl-tests."""
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\s+(\d+)\s", re.MULTILINE)
_CHECKED = re.compile(r"^# Out of bounds values\s*:\s*(\d+)\s+(\w+)", re.MULTILINE)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([\d.]+)", re.MULTILINE)
_UNCHECKED = re.compile(r"^# .*\bvalidation: 0\b", re.MULTILINE)
_TIMINGS = 8  # time, algbw, busbw, errors: out of place, then in place


@dataclasses.dataclass(frozen=True)
class NcclRun:
    """What one program said: GB/s by bytes (out of place), wrong values, ranks, and NCCL's log among it."""

    busbw: Dict[int, float]
    wrong: int
    ranks: int
    said: Said

    @property
    def largest(self) -> int:
        """The largest size, in bytes."""
        return max(self.busbw)

    def proof(self, op: str) -> Proof:
        """What carried ``op`` at the largest size; nccl-tests themselves say what they call, and on which GPUs."""
        return carrier(_LOGGED_AS.get(op, op), self.largest, self.ranks, self.said, [self.said])


def parse_nccl_tests(text: str) -> NcclRun:
    """Read a program's output. Raises BadOutput where it has no results, breaks off, or did not check its payload."""
    rows = [row for row in map(_row, text.splitlines()) if row is not None]
    busbw = {size: rate for size, rate, _ in rows}
    if not busbw:
        raise BadOutput("it has no line of results")
    if _AVERAGE.search(text) is None:
        raise BadOutput("it breaks off after %d sizes" % len(busbw))
    checked = _CHECKED.search(text)
    # The last line counts 0 values out of bounds also where none was looked at.
    if checked is None or _UNCHECKED.search(text) or not all(looked_at for _, _, looked_at in rows):
        raise BadOutput("it did not check its payload")
    ranks = len(set(_RANK.findall(text)))
    if not ranks:
        raise BadOutput("it does not tell which GPUs took part")
    wrong = int(checked.group(1))
    return NcclRun(
        busbw=busbw,
        wrong=wrong if checked.group(2) == "OK" else max(wrong, 1),
        ranks=ranks,
        said=parse_nccl_log(text),
    )


def _row(line: str) -> "Tuple[int, float, bool] | None":
    """(bytes, GB/s, whether its values were checked), out of place, of a line of results; None for any other line."""
    words = line.split()
    if len(words) < _TIMINGS + 4 or not words[0].isdigit() or not words[1].isdigit():
        return None
    try:
        size, busbw = int(words[0]), float(words[-_TIMINGS + 2])
    except ValueError:
        return None
    return (size, busbw, words[-_TIMINGS + 3] != "N/A") if size > 0 else None


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
        "nccl_transport": Metric("text", "algorithm, protocol and transports by NCCL's own log, by operation"),
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
                raise Skip("there is no operation %r (there are: %s)" % (op, ", ".join(PROGRAMS)))
            program = shutil.which(PROGRAMS[op])
            if program is None:
                context.emit("nccl_busbw", "node", labels={"op": op}, note="%s is not installed" % PROGRAMS[op])
                continue
            context.progress("%s on %d GPUs" % (PROGRAMS[op], count))
            try:
                _emit(context, op, count, _measured(context, program, count), note)
            except BadOutput as error:
                broken.append("%s: %s" % (PROGRAMS[op], error))
        if broken:
            raise RuntimeError("; ".join(broken))


def _command(program: str, context: Context, count: int) -> List[str]:
    size, iterations = str(context.params["max_size"]), str(int(context.params["iterations"]))
    return [program, "-b", "8", "-e", size, "-f", "2", "-g", str(count), "-n", iterations, "-c", "1"]


def _measured(context: Context, program: str, count: int) -> NcclRun:
    log = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING"}
    limit_s = context.params["limit_s"]
    done = run_tool(context, _command(program, context, count), limit_s, log)
    if done.status is None:
        raise BadOutput("it did not end within %g s" % limit_s)
    try:
        return parse_nccl_tests(done.out)
    except BadOutput as error:
        raise BadOutput("%s; it said: %s" % (error, done.last_word())) from error


def _emit(context: Context, op: str, count: int, found: NcclRun, note: str) -> None:
    labels, proof = {"op": op}, found.proof(op)
    size = "%d bytes, %d GPUs" % (found.largest, found.ranks)
    why_not = proof.why_not and "what carried it is not proven: " + proof.why_not
    context.emit(
        "nccl_busbw",
        "node",
        value=None if why_not else found.busbw[found.largest],
        # A ring is no slow NVLS: which of them ran is known only with proof.
        labels=labels if why_not else {**labels, "nvls": "on" if proof.in_switch else "off"},
        samples=int(context.params["iterations"]),
        note="; ".join(filter(None, (why_not, size, note))),
    )
    context.emit("nccl_mismatches", "node", value=found.wrong, labels=labels)
    context.emit("nccl_absent_gpus", "node", value=max(0, count - found.ranks), labels=labels)
    context.emit("nccl_transport", "node", text=proof.carried or None, labels=labels, note=proof.why_not)
