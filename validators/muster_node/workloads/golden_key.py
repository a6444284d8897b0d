"""What must be equal for two healthy devices to be comparable, in bits or in pace."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Mapping
from typing import Any

from muster_node.hardware.seam import Compute, Hardware

# The host's model too: operands are drawn there, and normal numbers differ between its vector units.
_FACTS = ("gpu_model", "cpu_model", "driver_version", "mig_mode", "ecc_mode")
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"

Facts = Mapping[tuple[str, str], str]
"""By name and device ("node": the host)."""


def keep_workspace() -> None:
    """Sets cuBLAS to return the same bits in each run, unless the node's environment says otherwise.

    cuBLAS reads the setting with the first product on a GPU: this has to be called before.
    """
    os.environ.setdefault(_WORKSPACE, ":4096:8")


def facts_of(hardware: Hardware) -> Facts:
    """Facts and settings of a node that may change the bits."""
    facts = {}
    for fact in hardware.inventory():
        if fact.name in _FACTS and (fact.text is not None or fact.value is not None):
            facts[fact.name, fact.device] = fact.text or f"{fact.value or 0:g}"
    facts[_WORKSPACE, "node"] = os.environ.get(_WORKSPACE, "unset")
    return facts


def golden_key(torch: Any, compute: Compute, facts: Facts, **work: object) -> str:
    """The golden key: everything that may change healthy devices' bits. Only digests of equal keys are comparable.

    ``work``: of what is computed. The key's own digest comes first, so that keys still differ if the rest is cut off.
    """
    text = _joined(_parts(torch, compute, facts, work))
    return f"key={hashlib.sha256(text.encode()).hexdigest()[:16]}; {text}"


def pace_key(torch: Any, compute: Compute, facts: Facts, **work: object) -> str:
    """What decides how fast healthy devices compute: of the golden key model, PyTorch, its kernels, and ``work``.

    Drivers and settings are not in it: one that makes a device slow has to be found by comparing.
    """
    decides = {f"{compute.device.kind}_model", "torch", "cuda", "cpu_kernels", *work}
    parts = _parts(torch, compute, facts, work)
    return _joined({name: text for name, text in parts.items() if name in decides})


def _parts(torch: Any, compute: Compute, facts: Facts, work: Mapping[str, object]) -> dict[str, str]:
    parts = {name: text for (name, device), text in facts.items() if device in ("node", compute.device.id)}
    if compute.torch_device.type == "cuda":
        properties = torch.cuda.get_device_properties(compute.torch_device)
        parts.update(
            sms=str(properties.multi_processor_count),
            capability=f"{properties.major}.{properties.minor}",
            cuda=str(torch.version.cuda),
            cublas=_cublas(),
            cudnn=str(torch.backends.cudnn.version()),
        )
    else:
        parts["cpu_kernels"] = str(getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")())
    return {**parts, **{name: str(value) for name, value in work.items()}, "torch": str(torch.__version__)}


def _joined(parts: Mapping[str, str]) -> str:
    return "; ".join("{}={}".format(*item) for item in sorted(parts.items()))


def _cublas() -> str:
    """The version of the package that brings cuBLAS, which can change while PyTorch stays the same; else "bundled"."""
    versions = {
        "{} {}".format(found.metadata["Name"], found.version)
        for found in importlib.metadata.distributions()
        if str(found.metadata["Name"]).lower().startswith("nvidia-cublas")
    }
    return ", ".join(sorted(versions)) or "bundled"
