"""The node side's commands: ``run``, ``probes``, ``check``, ``info``, ``sweep``, ``usage``, ``evidence``,
``simulate-reset``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import platform
import socket
import sys
from collections.abc import Sequence
from typing import Any, Callable

import muster_node
from muster_node import contract
from muster_node.agent import facts, fence, guard, jobdir, registry
from muster_node.agent import job as agent
from muster_node.bounded import bounded
from muster_node.hardware.seam import Hardware


def carry_out(
    argv: Sequence[str], relaunch: Sequence[str], open_hardware: Callable[[], Hardware], packages: Sequence[str]
) -> int:
    """Runs one command and returns its exit status. The arguments are those of ``cli.main``."""
    args = _parser().parse_args(argv)
    if args.command == "run":
        return agent.run(args.plan, args.job_dir, relaunch=relaunch, open_hardware=open_hardware, packages=packages)
    if args.command == "probes":
        return _probes(registry.discover(packages), args.json)
    if args.command == "check":
        return _check(registry.discover(packages), open_hardware, args.json)
    if args.command == "sweep":
        # What one command alone needs is imported for that one: a zipapp keeps no bytecode.
        from muster_node import sweep

        return sweep.main(open_hardware, args.boot, args.since)
    if args.command == "usage":
        return _usage(open_hardware, args.daemons)
    if args.command == "simulate-reset":
        return _simulate_reset(open_hardware, args.serial)
    if args.command == "evidence":
        from muster_node import evidence

        return evidence.main(args.words, args.limit, args.max, root=args.root, file=args.file)
    return _info(open_hardware, args.node, args.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="muster.pyz", description="Measures this machine. Never judges it.")
    parser.add_argument("--version", action="version", version=muster_node.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a plan; exit status: " + _exits())
    run.add_argument("plan", type=pathlib.Path, help="plan.json")
    run.add_argument("--job-dir", type=pathlib.Path, help="where result.json goes (default: the plan's folder)")
    for name, text in [
        ("probes", "what can be measured: every probe's parameters, metrics and needs"),
        ("check", "what is missing here; exit status 1 if a probe cannot run for want of it"),
        ("info", "what this agent and this machine are"),
    ]:
        command = commands.add_parser(name, help=text)
        command.add_argument("--json", action="store_true", help="as JSON")
        if name == "info":
            command.add_argument("--node", default=socket.gethostname(), help="the machine's name in the fleet")
    read = commands.add_parser("sweep", help="what the machine shows without load, as JSON: for the health sweep")
    read.add_argument("--boot", default="", help="the boot in which the last sweep ended")
    read.add_argument("--since", type=float, default=0.0, help="seconds since that boot of the last line that it read")
    usage = commands.add_parser("usage", help="whether the machine is in use, as JSON: asked before it is repaired")
    usage.add_argument("daemons", nargs="*", help="names of processes whose CPU time is no use")
    reset = commands.add_parser("simulate-reset", help="reset a GPU of a simulated machine, and never a real one")
    reset.add_argument("serial", help="its serial number")
    piece = commands.add_parser("evidence", help="the output of one command, or one file, as evidence of an incident")
    piece.add_argument("--limit", type=float, required=True, help="seconds that it may take")
    piece.add_argument("--max", type=int, required=True, help="bytes that are kept")
    piece.add_argument("--root", action="store_true", help="through sudo, where sudoers allows this very command")
    piece.add_argument("--file", action="store_true", help="the one word names a file")
    piece.add_argument("words", nargs="+", help="the command with its arguments")
    return parser


def _exits() -> str:
    return ", ".join(f"{status} {end}" for end, status in contract.EXIT_OF_END.items()) + (
        f", {contract.EXIT_BAD_PLAN} bad plan, {contract.EXIT_NO_RESULT} no result"
    )


def _probes(known: registry.Registry, as_json: bool) -> int:
    declared = [registry.declaration(probe) for _, probe in sorted(known.probes.items())]
    if as_json:
        print(json.dumps({"probes": declared, "broken": known.broken}, indent=1))
        return 0
    for item in declared:
        print(f"{item['name']:18} {item['stage']:12} {item['doc']}")
    for module, reason in sorted(known.broken.items()):
        print(f"{module} cannot be used: {reason}", file=sys.stderr)
    return 0


def _check(known: registry.Registry, open_hardware: Callable[[], Hardware], as_json: bool) -> int:
    from muster_node import check

    items = check.check(known.probes, open_hardware)
    if as_json:
        print(json.dumps([dataclasses.asdict(item) for item in items], indent=1))
    else:
        for item in items:
            mark = "ok" if item.ok else "MISSING" if item.needed_by else "optional"
            print(f"{mark:9} {item.item:16} {item.message}")
    return 0 if all(item.ok or not item.needed_by for item in items) else 1


def _info(open_hardware: Callable[[], Hardware], node: str, as_json: bool) -> int:
    info: dict[str, Any] = {
        "version": muster_node.__version__,
        "sha256": facts.agent_sha256(),
        "plan_schema": contract.PLAN_SCHEMA,
        "result_schema": contract.RESULT_SCHEMA,
        "hostname": socket.gethostname(),
        "machine_id": facts.machine_id(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": facts.installed("torch"),
        "work": str(jobdir.work_dir()),
        **_hardware_info(open_hardware),
        **_fence_info(node),
    }
    if as_json:
        print(json.dumps(info, indent=1))
    else:
        for name, value in info.items():
            print(f"{name:14} {value}")
    return 0


def _usage(open_hardware: Callable[[], Hardware], daemons: Sequence[str]) -> int:
    try:
        hardware = bounded("opening the hardware", open_hardware, agent.OPEN_LIMIT_S)
        use = guard.look(hardware, patient=True, daemons=daemons)
    except Exception as error:
        use = guard.Use(True, (f"{type(error).__name__}: {str(error)[:200]}",), known=False)
    print(json.dumps({"busy": use.busy, "sentence": use.sentence()}))
    return 0


def _simulate_reset(open_hardware: Callable[[], Hardware], serial: str) -> int:
    try:
        why = bounded("opening the hardware", open_hardware, agent.OPEN_LIMIT_S).simulate_reset(serial)
    except Exception as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
    print(json.dumps({"why": why}))
    return 0


def _hardware_info(open_hardware: Callable[[], Hardware]) -> dict[str, object | None]:
    try:
        hardware = bounded("opening the hardware", open_hardware, agent.OPEN_LIMIT_S)
        return {"boot_id": hardware.boot_id(), "simulated": hardware.simulated}
    except Exception as error:
        return {"boot_id": None, "simulated": None, "hardware_error": f"{type(error).__name__}: {error}"}


def _fence_info(node: str) -> dict[str, object]:
    mine = fence.Fence(jobdir.fence_dir(node))
    try:
        return {"fence": mine.highest(), "running": mine.running()}
    except (fence.Fenced, OSError) as error:
        return {"fence": None, "running": None, "fence_error": str(error)}
