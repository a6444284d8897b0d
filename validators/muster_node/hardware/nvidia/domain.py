"""The NVLink domain that a GPU is in, and IMEX, which shares its memory between the nodes of a rack-scale domain."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from typing import Any

from muster_node.hardware.host.inventory import text_fact
from muster_node.hardware.host.sysfs import COMMAND_TIMEOUT_S, output_of
from muster_node.hardware.nvidia.links import COMPLETED, fabric_facts, fabric_info
from muster_node.hardware.nvidia.nvml import Nvml
from muster_node.hardware.seam import NOT_SUPPORTED, Fact
from muster_node.privilege import output_within

_SERVICE = "nvidia-imex"
_CONTROL = "nvidia-imex-ctl"


def domain_fact(nvml: Nvml, handle: Any, device: str) -> Fact:
    """ClusterUUID and clique as "UUID.CLIQUE", the form of Kubernetes' label nvidia.com/gpu.clique.

    On a machine whose GPUs reach no other machine over NVLink the UUID is zero, and that is no fault.
    """
    answer, _ = fabric_info(nvml, handle)
    info = answer.value
    if info is None or info.state != COMPLETED:
        note = answer.note or (NOT_SUPPORTED if info is None or info.state == 0 else "it has not joined the fabric")
        return Fact("nvlink_domain", device, "text", note=note)
    text = f"{uuid.UUID(bytes=bytes(info.clusterUuid)[:16])}.{int(info.cliqueId)}"
    return Fact("nvlink_domain", device, "text", text=text)


def domain_facts(nvml: Nvml, handle: Any, device: str) -> Iterator[Fact]:
    """What a GPU says of its domain, for a reading before a block's collectives: identity, state and health."""
    yield domain_fact(nvml, handle, device)
    yield from fabric_facts(nvml, handle, device)


def imex_fact() -> Fact:
    """IMEX's own state where its control tool is there, else that of its service; no text where neither answers.

    A service that is masked leaves IMEX to something else (NVIDIA's DRA driver asks for it), whose state is not known.
    """
    if (output_of(["systemctl", "is-enabled", _SERVICE], ok_statuses=(0, 1)) or "").startswith("masked"):
        return text_fact("imex", "node", "service masked")
    if shutil.which(_CONTROL):
        status, out = output_within([_CONTROL, "-q"], COMMAND_TIMEOUT_S) or ("unknown: it did not end in time", b"")
        last = (out.decode("utf-8", "replace").strip().splitlines() or [""])[-1].strip()
        answer = last.split()[-1] if status == 0 and last else f"no answer from {_CONTROL} (exit {status}): {last}"
        return text_fact("imex", "node", answer[:200])
    state = (output_of(["systemctl", "is-active", _SERVICE], ok_statuses=(0, 3)) or "").strip()
    # "active" says that the process runs, and not that the domain is complete.
    return text_fact("imex", "node", f"service {state}" if state else None)
