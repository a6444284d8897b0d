"""What repairs between tests need: both policies, and room for evidence."""

from __future__ import annotations

from collections.abc import Iterator

from muster.cli.doctor.checks import Check, Mark
from muster.errors import MusterError


def examine() -> Iterator[Check]:
    """Policies that cannot be read, and groups of nodes that one of them lets be repaired and the other does not.

    Where repairs are switched on, also whether evidence can be kept: without it nothing is repaired.
    """
    from muster.judging import policies
    from muster.reporting import bundles

    def repaired() -> set[tuple[str, str]]:
        return {(each.label, each.value) for each in policies.health().groups if each.mode == "repair"}

    def enabled() -> set[tuple[str, str]]:
        return {(each.label, each.value) for each in policies.repair().enabled}

    groups: dict[str, set[tuple[str, str]]] = {}
    for name, read in (("health", repaired), ("repair", enabled)):
        try:
            groups[name] = read()
        except MusterError as error:
            yield Check(Mark.MISSING, f"{name} policy", str(error), "correct it, or remove it from MUSTER_SKU_PATH")
    if len(groups) < 2:
        return
    for label, value in sorted(groups["health"] - groups["repair"]):
        seen = f"nodes with {label}={value} have mode repair, and no rung is switched on for them: a person is asked"
        yield Check(Mark.ADVICE, "repairs", seen, "add the group to `enabled` of policies/repair.yaml")
    for label, value in sorted(groups["repair"] - groups["health"]):
        seen = f"rungs are switched on for nodes with {label}={value}, and no sweep begins a repair of them"
        yield Check(Mark.ADVICE, "repairs", seen, "give the group mode repair in policies/health.yaml")
    if groups["repair"]:
        try:
            yield Check(Mark.OK, "evidence", f"can be kept in {bundles.room()}")
        except MusterError as error:
            yield Check(Mark.MISSING, "evidence", str(error), "make room, or set MUSTER_ARCHIVE")
