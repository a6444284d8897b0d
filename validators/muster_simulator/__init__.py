"""Simulated GPU nodes behind the hardware seam: a physical model of a machine, measured by the unchanged probes.

``models``: hardware models; ``machine``: one machine as built; ``defects``: its faults; ``physics``: its behaviour;
``state``: its temperatures and loads now, shared by the processes of that node; ``compute`` and ``hardware``: what
probes see. Kernels run for real, on the CPU, at small shapes; only their time and the sensors come from the model.
"""

from __future__ import annotations

from muster_simulator.defects import create_machine
from muster_simulator.hardware import SimulatedHardware, environment, open_simulated
from muster_simulator.machine import Machine, load_machine

__all__ = ["Machine", "SimulatedHardware", "create_machine", "environment", "load_machine", "open_simulated"]
