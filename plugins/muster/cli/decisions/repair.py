"""``muster repair``: what would be done about a fault, and having it done."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from muster.cli.airflow.start import Wanted, start
from muster.cli.terminal import dry
from muster.cli.terminal.options import AsJson, Name, Reason, given
from muster.errors import MusterError
from muster.integration.runid import run_id
from muster.model.dags import REPAIR
from muster.model.nodes import Node
from muster_criteria.devices import kind_of, natural


def repair(
    name: Name,
    fault: Annotated[str, typer.Option(help="The class of the fault, as policies/repair.yaml has it.")],
    reason: Reason,
    device: Annotated[str, typer.Option(help="The device, such as gpu3; without it, the node.")] = "",
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """Take evidence of a node out of service, carry out the next repair of its ladder, and have it proved."""
    from muster import store

    node, why = store.nodes.get(name), given(reason)
    conf = {"node": name, "fault": fault, "device": device, "reason": why}
    check = functools.partial(_next, node, fault, device)
    start([Wanted(REPAIR, name, run_id(name, f"{fault} {device} {why}"), conf, check)], False, json, dry_run)


def _next(node: Node, fault: str, device: str) -> dry.Would:
    """What a repair of the node would do now. Raises MusterError if none can begin."""
    from muster import store
    from muster.judging import policies
    from muster.model.repairs import Fault
    from muster.operators.lifecycle.repair import situation
    from muster.rules.service import repair as rules

    policy = policies.repair()
    ladder = policy.ladder(fault)
    if ladder is None:
        known = ", ".join(each.fault for each in policy.ladders)
        raise MusterError(f"there is no ladder for {fault!r}: give one of {known}")
    if node.state not in rules.REPAIRABLE:
        raise MusterError(f"it is in {node.state}: only a node in {', '.join(rules.REPAIRABLE)} is repaired")
    if node.pause:
        raise MusterError(f"its tests are {node.pause}; see `muster node resume --help`")
    # Login and scheduler are checked when the repair is carried out; here they are assumed to allow it.
    now = situation(node, *store.repairs.foreseen(node.name, Fault(fault, device)), idle=True, leased=True)
    step = rules.next_step(now, policy, store.clock.now())
    effects = [f"the ladder of {fault}: {', '.join(ladder.rungs)} (policy {policy.cited})"]
    if isinstance(step, rules.Act):
        effects.append(f"would take evidence, then {step.rung}, unless its scheduler says that it is in use")
        effects.append(f"then {', '.join(ladder.prove)} at level {ladder.level} have to pass")
    else:
        who = "wait" if isinstance(step, rules.Wait) else "a person decides"
        effects.append(f"would take evidence, then {who}: {step.why}")
    # Only a warning, since a GPU that never answered is not in the records.
    alike = {each.slot for each in store.parts.of_node(node.name) if kind_of(each.slot) == kind_of(device)}
    listed = ", ".join(sorted(alike, key=natural))
    unknown = (f"the records know no {device} of it, but {listed}",) if alike and device not in alike else ()
    return dry.Would(tuple(effects), unknown)
