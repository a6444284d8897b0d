"""The login to a Kubernetes cluster: from an Airflow connection to the official client.

By default, the client writes certificates and keys into temporary files, which remain when a process ends without
Python's exit handlers, as Airflow's tasks do. It also ignores a failure of the kubeconfig's program (``exec``), and has
no time limit for it. So this module passes unnamed files, and runs the program itself.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import shutil
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import yaml

from muster.admission.runner import Runner
from muster.errors import BadScheduler, SchedulerDown
from muster.model.names import absolute_list
from muster_criteria import yaml_file

if TYPE_CHECKING:
    from kubernetes.client import ApiClient
    from kubernetes.config.kube_config import ConfigNode

KUBE_CONFIG_BYTES_MAX = 1_000_000

_NOEXEC_SEAL = 0x8
"""MFD_NOEXEC_SEAL: if ``vm.memfd_noexec`` is 2, Linux (6.3 and later) makes no file in memory without it."""


class KubernetesLogin(pydantic.BaseModel):
    """The fields that are read from the extra of an Airflow connection of type ``kubernetes``."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True)

    in_cluster: bool = False
    kube_config: str | dict[str, Any] = ""
    kube_config_path: Annotated[str, pydantic.AfterValidator(absolute_list)] = ""


def client_of(login: KubernetesLogin, context: str, connection: str, timeout_s: float) -> ApiClient:
    """Returns the client of a connection and context. ``timeout_s``: for the program of a kubeconfig.

    Raises BadScheduler; SchedulerDown if that program gives no credential.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise BadScheduler(
            "the Kubernetes client is not installed: install this package with its extra `kubernetes`"
        ) from None
    if not (login.in_cluster or login.kube_config or login.kube_config_path):
        raise BadScheduler(
            f"the Airflow connection {connection} names no cluster: set kube_config, kube_config_path or in_cluster in "
            "its extra"
        )
    configuration = client.Configuration()
    # Retries are ours: urllib3's would wait as long as Retry-After says, whatever the deadline.
    configuration.retries = False
    with contextlib.ExitStack() as files:
        try:
            if login.in_cluster:
                config.load_incluster_config(client_configuration=configuration)
            else:
                _load(_kube_config(login), context, timeout_s, configuration, files)
        except (
            config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError
        ) as error:  # fmt: skip
            raise BadScheduler(
                f"the Airflow connection {connection} cannot be used with context {context or '(current)'}: {error}"
            ) from None
        made = client.ApiClient(configuration)
        weakref.finalize(made, files.pop_all().close)
        return made


def _kube_config(login: KubernetesLogin) -> ConfigNode:
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.kube_config import ConfigNode, KubeConfigMerger

    if login.kube_config:
        text = login.kube_config
        parsed = yaml_file.load(text, KUBE_CONFIG_BYTES_MAX) if isinstance(text, str) else text
        if not parsed:
            raise ConfigException("its kube_config is empty")
        return ConfigNode("kube-config", parsed)
    found = KubeConfigMerger(login.kube_config_path).config
    if found is None:
        raise ConfigException(f"there is no file {login.kube_config_path}")
    for kind in ("clusters", "contexts", "users"):
        for number, entry in enumerate(found.value[kind]):
            entry.name = f"{kind}[{number}]"  # which errors quote; the client's own name holds its secrets
    return found


def _load(
    kube_config: ConfigNode, context: str, timeout_s: float, configuration: Any, files: contextlib.ExitStack
) -> None:
    """Fill the configuration by the client's own loader, so that it runs no program and writes no file."""
    from kubernetes.config.kube_config import KubeConfigLoader

    loader = KubeConfigLoader(kube_config, context or None, config_base_path=None)
    names = loader.current_context["context"]
    cluster = kube_config["clusters"].get_with_name(names["cluster"])["cluster"].value
    user: dict[str, Any] = {}
    users = kube_config.safe_get("users") and kube_config["users"]
    if users and names.get("user") and (found := users.get_with_name(names["user"], safe=True)):
        user = found["user"].value
        if user.get("exec") and not (user.get("token") or user.get("tokenFile") or "auth-provider" in user):
            user |= _credential(found["user"]["exec"], cluster, timeout_s)
        user.pop("exec", None)
    for part, field in ((cluster, "certificate-authority"), (user, "client-certificate"), (user, "client-key")):
        if data := part.pop(f"{field}-data", ""):
            part[field] = _unnamed_file(base64.b64decode(data), files)
    loader.load_and_set(configuration)


def _credential(program: ConfigNode, cluster: Mapping[str, Any], timeout_s: float) -> Mapping[str, str]:
    """Returns the program's credential, as fields of a kubeconfig's user. Raises SchedulerDown, BadScheduler without
    it.

    The program runs for each client, and each question makes a new client: credentials are not cached.
    """
    command = str(program["command"])
    if "/" in command and program.path:
        command = os.path.join(os.path.dirname(os.path.abspath(program.path)), command)
    spec: dict[str, Any] = {"interactive": False}
    if program.safe_get("provideClusterInfo"):
        extensions = {each["name"]: each["extension"] for each in cluster.get("extensions") or []}
        config = extensions.get("client.authentication.k8s.io/exec")
        spec["cluster"] = {**cluster} if config is None else {**cluster, "config": config}
    info = {"apiVersion": program["apiVersion"], "kind": "ExecCredential", "spec": spec}
    # The whole environment, as kubectl passes it: it has profiles, proxies and folders of the provider's login.
    variables = dict(os.environ) | {str(each["name"]): str(each["value"]) for each in program.safe_get("env") or []}
    variables["KUBERNETES_EXEC_INFO"] = json.dumps(info)
    if shutil.which(command, path=variables.get("PATH")) is None:
        raise BadScheduler(
            f"the kubeconfig wants the program {command}, which is not on this machine, or may not be run"
        )
    arguments = [str(each) for each in program.safe_get("args") or []]
    said = Runner(timeout_s, tuple(variables.items()), shown=1).run(command, *arguments)
    try:
        status = json.loads(said)["status"]
        if token := status.get("token"):
            return {"token": str(token)}
        pair = (("client-certificate", "clientCertificateData"), ("client-key", "clientKeyData"))
        return {f"{field}-data": base64.b64encode(status[name].encode()).decode() for field, name in pair}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise SchedulerDown(
            f"the kubeconfig's program {command} printed no token, nor a certificate with its key"
        ) from None


def _unnamed_file(data: bytes, files: contextlib.ExitStack) -> str:
    """Returns the path of a file in memory, which exists until ``files`` is closed or the process ends in any way."""
    try:
        number = os.memfd_create("muster-login", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        number = os.memfd_create("muster-login")
    file = files.enter_context(os.fdopen(number, "wb"))
    file.write(data)
    file.flush()
    return f"/proc/self/fd/{file.fileno()}"
