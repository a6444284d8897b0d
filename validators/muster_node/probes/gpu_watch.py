"""States and counters of every GPU before, during and after the load of a stage, whatever its probes are.

The agent reads them (``agent.gpu_watch``); the plan calls this where the load is over.
"""

from __future__ import annotations

from muster_node.probe import Context, Probe, Skip
from muster_node.workloads.under_load.gpus import METRICS


class GpuWatch(Probe):
    """What the load of the probes before it did to the GPUs."""

    name = "gpu_watch"
    stage = "burn_in"
    doc = "Errors, links, memory, throttling, settings and foreign processes of every GPU while the stage loads them"
    loads = False
    by_agent = True
    metrics = METRICS
    needs = ("gpu",)

    def run(self, context: Context) -> None:
        """Raises Skip: outside of a job there is no load to watch."""
        raise Skip("the agent measures this while a job's other probes run")
