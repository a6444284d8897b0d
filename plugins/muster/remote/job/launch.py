"""How the node side is started on a node, as data: the host's python, a venv, or a container.

The work folder is mounted at its own path in containers, so that a job reads the same wherever it runs.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic

from muster.errors import MusterError, first_refused

NAME_PREFIX = "muster-"
FENCE = "MUSTER_FENCE"
RUNTIMES = ("podman", "docker")
"""Their containers outlive the process that started them. enroot and apptainer run the node side in the job's own
process group.
"""
CONTAINERS = (*RUNTIMES, "enroot", "apptainer")


class BadLaunch(MusterError):
    """Invalid launch settings of a node; the message names the setting and the reason."""


class Launch(pydantic.BaseModel):
    """A node's launch settings, as in the inventory.

    ``kind``: where Python and PyTorch are; ``python`` is the interpreter there, ``host_python`` the host's if that is a
    container, for the sweep, evidence and repairs; ``path`` the venv's folder; ``image`` the container image (podman,
    docker), root filesystem or image file (enroot, apptainer); ``gpus`` passes the NVIDIA GPUs into the container;
    ``options`` are further options of the runtime; ``env`` goes to the node side. Its variable MUSTER_FENCE, the folder
    of the machine's fence, is mounted into containers: the fence outlives them.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    kind: Literal["python", "venv", "podman", "docker", "enroot", "apptainer"] = "python"
    python: str = "python3"
    host_python: str = "python3"
    path: str = ""
    image: str = ""
    gpus: bool = False
    options: tuple[str, ...] = ()
    env: dict[str, str] = pydantic.Field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _complete(self) -> Launch:
        if self.kind == "venv" and not self.path:
            raise ValueError("a venv needs 'path', the folder it lies in")
        if self.kind in CONTAINERS and not self.image:
            raise ValueError(f"{self.kind} needs 'image'")
        for name in ("python", "host_python", "path", "image"):
            if getattr(self, name).startswith(("-", "~")):
                raise ValueError(f"{name!r} must not start with '-' or '~'; write the whole path")
        if not self.env.get(FENCE, "/").startswith("/"):
            raise ValueError(f"{FENCE} must be an absolute path, of a folder on the node's own disk")
        bad = [name for name in self.env if not name.isidentifier()]
        if bad:
            raise ValueError(f"{bad[0]!r} is no name of an environment variable")
        return self


def parse_launch(raw: Mapping[str, Any]) -> Launch:
    """Returns validated launch settings. Raises BadLaunch."""
    try:
        return Launch.model_validate(dict(raw or {}))
    except pydantic.ValidationError as error:
        raise BadLaunch(f"the node's launch settings cannot be used: {first_refused(error)}") from error


def host_python(how: Launch) -> str:
    """Returns the Python that runs on the host itself, for what needs the standard library alone."""
    return {"python": how.python, "venv": posixpath.join(how.path, "bin", "python")}.get(how.kind, how.host_python)


def on_host(launch: Mapping[str, Any], agent_path: str, args: Sequence[str] = ()) -> list[str]:
    """Returns the command line that runs the node side ``agent_path`` with ``args`` on the host itself.

    Raises BadLaunch.
    """
    how = parse_launch(launch)
    return [*_env(how), host_python(how), agent_path, *args]


def command_for(launch: Mapping[str, Any], agent_path: str, args: Sequence[str], *, key: str = "") -> list[str]:
    """Returns the command line that runs the node side ``agent_path`` with ``args``.

    ``agent_path`` is ``{work folder}/agents/{sha256}.pyz``; ``key`` names the container. Raises BadLaunch.
    """
    how = parse_launch(launch)
    if how.kind not in CONTAINERS:
        return on_host(launch, agent_path, args)
    work = posixpath.dirname(posixpath.dirname(agent_path))
    return [*_container(how, work, key), how.python, agent_path, *args]


def _env(how: Launch) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in sorted(how.env.items()))] if how.env else []


def _container(how: Launch, work: str, key: str) -> list[str]:
    start, mount, gpus = _STARTS[how.kind]
    words = [*start]
    if how.kind in RUNTIMES:
        words += ["--workdir", work, *(("--name", f"{NAME_PREFIX}{key}") if key else ())]
    for folder in filter(None, (work, how.env.get(FENCE))):
        words += [mount, f"{folder}:{folder}"]
    for name, value in (("MUSTER_WORK", work), *sorted(how.env.items())):
        words += ["--env", f"{name}={value}"]
    return [*words, *(gpus if how.gpus else ()), *how.options, how.image]


# The host's pid, ipc and network: the in-use guard looks for foreign processes, PyTorch shares memory. Without a pid
# namespace the agent is not process 1, so it needs no --init, and podman refuses to give it one.
_OCI = ("run", "--rm", "--pid=host", "--ipc=host", "--network=host")
_STARTS = {
    "podman": (("podman", *_OCI), "--volume", ("--device", "nvidia.com/gpu=all")),
    "docker": (("docker", *_OCI), "--volume", ("--gpus", "all")),
    "enroot": (("enroot", "start", "--rw"), "--mount", ()),
    "apptainer": (("apptainer", "exec"), "--bind", ("--nv",)),
}
"""By kind of container: the words that begin its command, the option that mounts a folder, those that pass the GPUs."""

# Stop first: podman's rm alone waits ten seconds for a process that ignores SIGTERM. --rm may have removed it already,
# and a node without the runtime has no container either.
_REMOVAL = """! command -v {kind} >/dev/null || {{
  {kind} stop -t 0 "{name}" >/dev/null 2>&1
  left=$({kind} rm -f "{name}" 2>&1) || case $left in *'o such container'*|*'already in progress'*) ;; *) false;; esac
}}"""


def removal(runtime: str, key: str) -> str:
    """Returns a shell command that removes a job's container with all its processes and fails if it cannot.

    ``key``: the job's, or a shell expression that gives it.
    """
    return _REMOVAL.format(kind=runtime, name=NAME_PREFIX + key)
