"""Runs a probe's part in a block, and reports which members were present."""

from __future__ import annotations

from typing import Callable

from muster_node.cluster.rendezvous.block import METRICS, PARAMS, Block, block_of
from muster_node.cluster.rendezvous.hub import NODE
from muster_node.cluster.rendezvous.member import ExitStatus, Member, PeerGroup
from muster_node.probe import Context, Probe

__all__ = ["METRICS", "PARAMS", "join_block"]


def join_block(probe: type[Probe], context: Context, work: Callable[[PeerGroup], None]) -> None:
    """Joins the block that the parameters describe, does ``work`` with it, and reports who was lost.

    Returns normally if another member was lost: measurements until then stay valid. Raises the exception of the work
    if that was this node's own failure, ValueError for parameters that do not fit, and RuntimeError if the others
    went on without this node.
    """
    block = block_of(probe.name, context.params, context.seed)
    member = Member(block, probe.name, context.hardware.host_clock, context.progress)
    exit_status = member.run(work)
    _report(context, block, member.group, exit_status)
    given_up = next((lost.why for lost in exit_status.missing if lost.name == block.name), None)
    others_fault = bool(exit_status.broken or len(exit_status.missing) > len(member.group.absent))
    if exit_status.error is not None and (given_up is not None or not others_fault):
        raise exit_status.error
    if given_up is not None:
        raise RuntimeError(f"the other members gave this node up: {given_up}")


def _report(context: Context, block: Block, group: PeerGroup, exit_status: ExitStatus) -> None:
    missing = {lost.name: lost for lost in exit_status.missing}
    for name in block.members:
        lost = missing.get(name)
        labels = {"member": name, **({"part": lost.device} if lost and lost.device != NODE else {})}
        context.emit(
            "member_missing", "node", value=float(lost is not None), labels=labels, note=lost.why if lost else ""
        )
    why = exit_status.broken or "; ".join(f"{lost.name}: {lost.why}" for lost in exit_status.missing)
    if exit_status.intact:
        note = f"without {why}" if why else ""
    else:
        note = f"ended in phase {exit_status.phase}: {why}"
    context.emit("block_intact", "node", value=float(exit_status.intact), note=note)
    if group.join_lag_s is not None:
        context.emit("join_lag", "node", value=group.join_lag_s)
    if note:
        context.progress(note)
