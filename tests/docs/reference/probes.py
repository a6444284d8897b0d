"""The probes with their parameters and metrics, from the probes' own declarations."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.docs.reference.markdown import code, head, table

ABOUT = """A probe measures one thing on a node and never judges. SKU files say which stage runs it, with which
parameters and limits; [extending](../extending.md) shows how to write one. `needs` is what a node must have, else
the probe is skipped with that reason."""


def declarations() -> list[dict[str, Any]]:
    """What ``muster_node probes --json`` prints, as `make declarations` reads it."""
    command = [sys.executable, "-m", "muster_node", "probes", "--json"]
    document = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert not document["broken"], document["broken"]
    probes: list[dict[str, Any]] = document["probes"]
    return probes


def page() -> str:
    """docs/reference/probes.md."""
    parts = [head("Probes", ABOUT)]
    for probe in declarations():
        facts = [f"stage `{probe['stage']}`", "puts load on the node" if probe["loads"] else "no load"]
        if probe["needs"]:
            facts.append("needs " + ", ".join(code(each) for each in probe["needs"]))
        parts.append(f"\n## {probe['name']}\n\n{probe['doc']} ({'; '.join(facts)}).\n")
        if probe["params"]:
            rows = [
                (code(name), code(json.dumps(each["default"])), each["doc"]) for name, each in probe["params"].items()
            ]
            parts.append("\n" + table(("parameter", "default", "meaning"), rows))
        if probe["metrics"]:
            metrics = [(code(name), each["unit"], each["doc"]) for name, each in probe["metrics"].items()]
            parts.append("\n" + table(("metric", "unit", "meaning"), metrics))
    return "".join(parts)
