"""What ``muster node check`` does: send the node side to a node, and list what is missing there."""

from __future__ import annotations

import dataclasses
import json
import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.errors import MusterError, UnknownNode, of_sku_files
from muster.model.nodes import NewNode, Node
from muster.settings import settings
from muster_criteria.stages import STAGES

if TYPE_CHECKING:
    from muster.remote.connection import ssh

OK, MISSING, OPTIONAL = "ok", "missing", "optional"

TIMEOUT_S = 240.0
"""Longer than the node side gives itself: the first import of PyTorch reads gigabytes from a cold disk."""

ITEMS_MAX = 1000


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing looked at: ``mark`` is ok, missing (some probe cannot do without it) or optional."""

    mark: str
    item: str
    needed_by: tuple[str, ...]
    message: str


def target(node: str, port: int, user: str, launch: str) -> Node | NewNode:
    """Returns the enrolled node of that name, or else that host, without a SKU, under the host key that answers now."""
    from muster import store
    from muster.cli.doctor import connections

    try:
        return store.nodes.get(node)
    except UnknownNode:
        pass
    try:
        parsed = json.loads(launch) if launch else {}
    except ValueError:
        raise MusterError(
            f'--launch {launch!r} is not JSON; write \'{{"kind": "venv", "path": "/opt/venv"}}\''
        ) from None
    return NewNode(node, node, connections.host_key(node, port), "", port, user, parsed)


def check(node: Node | NewNode, level: str) -> list[Item]:
    """Everything that the node side looks at there, what is missing first. Raises MusterError if it cannot be reached.

    For an enrolled node, what its SKU requires at ``level`` can be missing; what none of its probes use is left out.
    """
    answer, program = _run_agent(node, ["check", "--json"])
    items = parse(answer.out)
    if items is None:
        raise MusterError(
            f"{node.name}: the node side could not check anything: {answer.complaint}; "
            f"look whether Python 3.9 or later is there ({program})"
        )
    how = "the key pinned at enrolment" if node.sku else "a host key that is not pinned yet"
    if node.sku:
        items = for_sku(items, node.sku, level)
    logged_in = Item(OK, "ssh", (), f"logged in to {node.host}:{node.port} under {how}")
    items = [logged_in, *_of_login(node), *_of_host(node), *items]
    return _missing_first([*of_controller(node.name), *items] if node.sku else items)


def _of_login(node: Node | NewNode) -> list[Item]:
    """Whether jobs end when the login that started them closes, and whether a reboot would count as a crash."""
    from muster.cli.doctor.connections import logged_in

    with logged_in(node) as client:
        from muster.remote.connection import ssh
        from muster.remote.job import launch, scripts

        def is_so(script: str) -> bool:
            return bool(ssh.run(client, ssh.shell(script), to="ask systemd").out)

        jobs_end = is_so(scripts.ENDS_WITH_LOGIN)
        containers_end = launch.parse_launch(node.launch).kind == "podman" and is_so(scripts.ENDS_WITH_USER)
        reboots_unseen = is_so(scripts.REBOOTS_UNSEEN)
    found = []
    if jobs_end:
        fix = "name this user in KillExcludeUsers= of logind.conf, and restart systemd-logind"
        why = f"systemd-logind ends each job as the login that started it closes (KillUserProcesses=yes): {fix}"
        found.append(Item(MISSING, "jobs outlive the login", ("every test",), why))
    if containers_end:
        fix = "run `loginctl enable-linger USER` there, as root"
        why = f"systemd-logind ends the containers of this user's podman as the last login closes (Linger=no): {fix}"
        found.append(Item(MISSING, "containers outlive the login", ("every test",), why))
    if reboots_unseen:
        fix = "add this user to the group systemd-journal there, and set Storage=persistent in journald.conf"
        why = "an administrator's reboot during a test counts as a crash: there is no `last` with /var/log/wtmp, and "
        why += f"this user cannot read the journal of earlier boots: {fix}"
        found.append(Item(OPTIONAL, "orderly reboots", ("every test",), why))
    return found


def _of_host(node: Node | NewNode) -> list[Item]:
    """Whether the node side also runs outside the container, if that is how tests are launched."""
    from muster.remote.job import launch

    how = launch.parse_launch(node.launch)
    if how.kind not in launch.CONTAINERS:
        return []
    answer, _ = _run_agent(node, ["--version"], on_host=True)
    needed = ("sweep", "evidence", "repair")
    if answer.rc == 0:
        return [Item(OK, "python on the host", needed, f"{how.host_python} there runs the node side")]
    fix = "install Python 3.9 or later, or name it as 'host_python' in 'launch'"
    why = f"{how.host_python} there cannot run the node side ({answer.complaint}): {fix}"
    return [Item(MISSING, "python on the host", needed, why)]


def of_controller(name: str) -> list[Item]:
    """What the controller lacks for admitting an enrolled node: its place in a scheduler, and the signing key."""
    from muster import store
    from muster.admission import clusters

    place = store.schedulers.place(name)
    found = []
    if place is not None:

        def look(cluster: str = place.cluster, name: str = place.name) -> None:
            clusters.check(cluster, [name])
            clusters.backend_of(cluster).check_rights()

        found.append(_tried("scheduler", look, place.cluster))
    found.append(_tried("signing key", store.certificates.check_signing_key, "certificates can be signed"))
    return found


def _tried(item: str, act: Callable[[], None], well: str) -> Item:
    try:
        act()
    except MusterError as error:
        return Item(MISSING, item, ("admission",), str(error))
    return Item(OK, item, (), well)


def fence_of(node: Node | NewNode) -> int:
    """The highest fencing token that the node has seen, -1 if none. Raises MusterError."""
    answer, program = _run_agent(node, ["info", "--json", "--node", node.name])
    try:
        found = json.loads(answer.out)["fence"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, int) or isinstance(found, bool):
        raise MusterError(
            f"{node.name}: the node side ({program}) names no fencing token; delete the file `fence` in its work "
            f"folder while no test runs there: {answer.complaint}"
        )
    return found


def _run_agent(node: Node | NewNode, args: list[str], *, on_host: bool = False) -> tuple[ssh.Completed, str]:
    """Returns (the node side's output with these arguments, the name of the program that ran it), as in a test or, if
    ``on_host``, outside the container. Raises MusterError.
    """
    from muster.cli.doctor.connections import logged_in

    with logged_in(node) as client:
        from muster.remote.connection import ssh
        from muster.remote.job import jobs, launch
        from muster.remote.job.zipapp import build_agent

        agent = build_agent(settings().home / "agents")
        seen = jobs.look(client, node.work_dir, jobs.NO_JOB, agent.sha256)
        jobs.send_agent(client, seen, agent.path, agent.sha256)
        run_by = launch.on_host if on_host else launch.command_for
        words = run_by(node.launch, jobs.agent_path(seen.work, agent.sha256), args)
        command = ["env", f"MUSTER_WORK={seen.work}", *words]
        return ssh.run(client, command, timeout=TIMEOUT_S), posixpath.basename(words[0])


def for_sku(items: list[Item], sku_name: str, level: str) -> list[Item]:
    """``items`` marked by what the SKU's programme runs and requires at ``level``. Raises MusterError."""
    from muster_criteria.cluster.fabric.judging.floors import pair_limits
    from muster_criteria.cluster.plan import PAIRS, has_rounds
    from muster_criteria.sku_files import programme
    from muster_criteria.sku_files.skus import load_sku
    from muster_node.check import RDMA_ITEMS

    with of_sku_files():
        sku = load_sku(sku_name, settings().sku_folders)
        uses = [programme.stage_probes(sku, stage, level) for stage in STAGES]
    planned = {probe for stage in uses for probe in stage}
    required = {probe for stage in uses for probe, use in stage.items() if programme.requires(sku, probe, use)}
    # A block falls back to TCP without the tool, and cannot pass then.
    by_tool = has_rounds(sku.block, level) and bool(pair_limits(sku.block.limits))
    rails_by = sku.block.probes[PAIRS].params_at(level).get("backend") if by_tool else None
    by_rdma = (rails_by, *RDMA_ITEMS) if rails_by in ("ib_write_bw", "nccl") else (rails_by,)
    marked = []
    for item in items:
        needed = tuple(probe for probe in item.needed_by if probe in planned)
        if item.item in by_rdma:
            needed += (PAIRS,)
        mark, message = item.mark, item.message
        if item.item == "gpu" and mark != OK and not sku.devices.get("gpu"):
            continue
        if item.item == "gpu" and mark != OK and not item.needed_by:
            mark, message = MISSING, f"there is no GPU, and SKU {sku_name} has {sku.devices['gpu']}"
        elif item.mark != OK and (item.needed_by or needed):
            if not needed:
                continue
            mark = MISSING if (required | {PAIRS}).intersection(needed) else OPTIONAL
        marked.append(Item(mark, item.item, needed, message))
    return _missing_first(marked)


def parse(answer: bytes) -> list[Item] | None:
    """The node side's answer, checked and cleaned like everything that a node says; None if it makes no sense."""
    from muster.remote.connection.ssh import clean

    try:
        raw = json.loads(answer)
        if not isinstance(raw, list):
            return None
        items = [
            Item(
                OK if each["ok"] is True else MISSING if each["needed_by"] else OPTIONAL,
                clean(str(each["item"]))[:80],
                tuple(clean(str(probe))[:80] for probe in each["needed_by"]),
                clean(str(each["message"]))[:500],
            )
            for each in raw[:ITEMS_MAX]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return _missing_first(items)


def _missing_first(items: list[Item]) -> list[Item]:
    order = (MISSING, OPTIONAL, OK)
    return sorted(items, key=lambda each: order.index(each.mark))
