"""Probes that behave."""
# ruff: noqa: RUF012

import os
import time
from pathlib import Path

from muster_node.probe import Metric, Param, Probe, Skip


class Good(Probe):
    name = "good"
    stage = "intake"
    doc = "Measures the values in its parameters"
    params = {"value": Param(1.5, "what to measure"), "seconds": Param(0.0, "how long to take")}
    metrics = {
        "figure": Metric("GB/s", "a figure"),
        "rate": Metric("GFLOPS", "a rate", gpu_unit="TFLOPS"),
        "fact": Metric("text", "a fact"),
    }
    loads = False

    def run(self, context):
        context.progress(f"at work\x1b[2J\nwith seed {context.seed}")
        context.emit("figure", "node", value=context.params["value"], labels={"op": "copy"}, samples=3, spread=0.25)
        context.emit("rate", "gpu3", value=7)
        context.emit("fact", "disk:sda", text="a disk")
        context.emit("figure", "cpu0", note="not supported")
        time.sleep(context.params["seconds"])


class Environment(Probe):
    name = "environment"
    stage = "intake"
    doc = "Reports its variables"
    metrics = {"fact": Metric("text", "names and values")}
    loads = False

    def run(self, context):
        for name, value in os.environ.items():
            if any(part in name for part in ("CUDA", "TF32", "OMP", "AFFINITY")):
                context.emit("fact", "node", text=f"{name}={value}")
        context.emit("fact", "node", text=f"scratch={context.scratch}")


class NotANumber(Probe):
    name = "not_a_number"
    stage = "intake"
    doc = "Measures a NaN"
    metrics = {"figure": Metric("GB/s", "a figure")}
    loads = False

    def run(self, context):
        context.emit("figure", "node", value=float("nan"))


class Skipper(Probe):
    name = "skipper"
    stage = "intake"
    doc = "Finds that it cannot run here"
    loads = False

    def run(self, context):
        raise Skip("no privilege")


class Needy(Probe):
    name = "needy"
    stage = "intake"
    doc = "Needs a tool that does not exist"
    needs = ("tool:no-such-tool-anywhere",)
    loads = False

    def run(self, context):
        raise AssertionError("must not run")


class NeedsGpu(Probe):
    name = "needs_gpu"
    stage = "intake"
    doc = "Needs a GPU"
    needs = ("gpu",)

    def run(self, context):
        raise AssertionError("must not run")


class Loader(Probe):
    name = "loader"
    stage = "burn_in"
    doc = "Would put load on the machine"
    metrics = {"figure": Metric("GB/s", "a figure")}

    def run(self, context):
        context.emit("figure", "node", value=1)


class Scratcher(Probe):
    name = "scratcher"
    stage = "intake"
    doc = "Leaves files in its scratch directory and reports its path"
    metrics = {"fact": Metric("text", "where")}
    loads = False

    def run(self, context):
        (context.scratch / "big").write_bytes(b"x" * 100_000)
        (context.scratch / "deep").mkdir()
        (context.scratch / "deep" / "er").write_text("x")
        context.emit("fact", "node", text=str(context.scratch))


class Chatty(Probe):
    name = "chatty"
    stage = "intake"
    doc = "Sends a megabyte of progress messages"
    metrics = {"figure": Metric("GB/s", "a figure")}
    loads = False

    def run(self, context):
        for line in range(5000):
            context.progress(f"{line} {'x' * 200}")
        context.emit("figure", "node", value=1)


class Filler(Probe):
    name = "filler"
    stage = "intake"
    doc = "Fills the disk that its scratch directory lies on, beyond its reach"
    params = {"path": Param("", "file to write until nothing goes in any more")}
    metrics = {"figure": Metric("GB/s", "a figure")}
    loads = False

    def run(self, context):
        context.emit("figure", "node", value=2)
        with Path(context.params["path"]).open("wb", buffering=0) as file:
            for size in (1 << 16, 512):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    os.fsync(file.fileno())
