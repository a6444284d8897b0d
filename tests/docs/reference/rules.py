"""The kinds of rules and what each breach leads to, from the judge's tables."""

from __future__ import annotations

from muster_criteria.stage.rules import AMONG_ITSELF, FLEET_KINDS, INVALID_KINDS, KINDS, SEVERITY
from tests.docs.reference.markdown import code, head, table

ABOUT = """Each limit in a SKU file becomes one rule, evaluated for all devices at once. [Verdicts](../verdicts.md)
explains how findings become a verdict, [science](../science.md) where the limits of the comparisons come from."""
WITH = {
    **dict.fromkeys(KINDS, "a limit of the SKU file"),
    **dict.fromkeys(AMONG_ITSELF, "the node's own devices: it can fail one, and never passes a measurement alone"),
    **dict.fromkeys(FLEET_KINDS, "the fleet, by the programme's `compare`"),
    "siblings": "the node's own devices, by the programme's `compare`",
    **dict.fromkeys(INVALID_KINDS, "what a part of its kind can do: a breach makes the measurement invalid"),
}


def page() -> str:
    """docs/reference/rules.md."""
    kinds = [(code(kind), claim, WITH[kind]) for kind, claim in KINDS.items()]
    breaches = [(code(breach), code(severity.value)) for breach, severity in SEVERITY.items()]
    return (
        head("Rules", ABOUT)
        + "\n"
        + table(("kind", "holds if", "compares with"), kinds)
        + "\nA limit names its breach:\n\n"
        + table(("breach", "severity of the finding"), breaches)
    )
