"""The commands, from Typer's own declarations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from muster.cli.app import root
from tests.docs.reference.markdown import code, head, table

ABOUT = """Every command that loads a node or changes a state has `--dry-run`, which prints what it would do and does
nothing. Every command takes `--json`: stdout is then one JSON document, `{"messages": [...]}` where a command prints
sentences and `{"error": "...", "kind": "..."}` if it is refused, with `"messages"` of what it did before. Decisions are
recorded under `--as`, else `MUSTER_PERSON`, else your login. Exit status: 0 done, 1 refused or failed, 2 for a command
line that cannot be parsed, 130 interrupted."""


def commands(group: typer.core.TyperGroup, prefix: str = "muster") -> Iterator[tuple[str, Any]]:
    """(whole name, command) of every command below ``group``, groups aside."""
    for name, command in group.commands.items():
        if isinstance(command, typer.core.TyperGroup):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def page() -> str:
    """docs/reference/commands.md."""
    overview = [
        (f"[{name}](#{name.replace(' ', '-')})", _prose(command.help or "")) for name, command in commands(root())
    ]
    parts = [head("Commands", ABOUT), "\n", table(("command", "what it does"), overview)]
    for name, command in commands(root()):
        arguments = " ".join(_argument(param) for param in command.params if _is_argument(param))
        usage = f"{name} {arguments}".strip()
        parts.append(f"\n## {name}\n\n{_prose(command.help or '')}\n\n```\n{usage} [OPTIONS]\n```\n")
        rows = [(_shown(param), _default(param), param.help or "") for param in command.params if not param.hidden]
        if rows:
            parts.append("\n" + table(("argument", "default", "meaning"), rows))
    return "".join(parts)


def _is_argument(param: Any) -> bool:
    return bool(param.param_type_name == "argument")


def _argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    return name if param.required else f"[{name}]"


def _shown(param: Any) -> str:
    if _is_argument(param):
        return code(_argument(param))
    return ", ".join(code(option) for option in (*param.opts, *param.secondary_opts))


def _default(param: Any) -> str:
    if param.required:
        return "required"
    if param.default is None or callable(param.default) or param.default in ((), [], False, ""):
        return ""
    return code(str(getattr(param.default, "value", param.default)))


def _prose(text: str) -> str:
    return " ".join(text.replace("\b", "").split())
