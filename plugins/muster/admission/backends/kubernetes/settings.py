"""The settings of one Kubernetes cluster, in MUSTER_SCHEDULERS."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic


def _key(taint: str) -> str:
    if "=" in taint or ":" in taint:
        raise ValueError(f"{taint!r} matches no taint: give its key alone, without value and effect")
    return taint


class KubernetesSettings(pydantic.BaseModel):
    """One cluster. ``connection``: the Airflow connection (type kubernetes); ``context``: of its kubeconfig.

    ``closing_taints``: keys of taints by which others close a node to all jobs; further taints only select jobs.
    ``system_namespaces``: names or patterns (``kube-*``); their pods are no users' jobs, nor are those of daemon sets.
    ``test_image``: of the pods that hold idle nodes while they are tested, in ``test_namespace``, of
    ``test_priority_class``; empty: tests close the node. ``end_corrupted_jobs``: delete users' pods on a node once a
    test has found that it corrupts data.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    kind: Literal["kubernetes"]
    connection: str
    context: str = ""
    closing_taints: tuple[Annotated[str, pydantic.AfterValidator(_key)], ...] = ()
    system_namespaces: tuple[str, ...] = ("kube-system",)
    test_image: str = ""
    test_namespace: str = "muster"
    test_priority_class: str = "muster-idle-tests"
    end_corrupted_jobs: bool = False
