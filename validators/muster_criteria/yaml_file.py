"""YAML from outside, read within bounds: bytes, nesting, and what aliases unfold to."""

from __future__ import annotations

from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where libyaml is there
NESTING_MAX = 50
"""Deepest list or map. Our files need 6; libyaml's loader overflows the C stack at some ten thousand."""
BYTES_PER_VALUE = 4
"""Bytes of the permitted size per value, each alias unfolded: aliases hold no more than plain text could."""


class BadYaml(ValueError):
    """A text that is not YAML or exceeds a bound. ``line`` counts from 1; None where the text is not UTF-8."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(f"is not YAML{f' at line {line}' if line else ''}: {problem}")
        self.problem, self.line = problem, line


def load(text: bytes | str, bytes_max: int) -> Any:
    """Returns the values of a YAML document. Raises BadYaml."""
    root = compose(text, bytes_max)
    return None if root is None else construct(root)


def construct(node: yaml.Node) -> Any:
    """Returns the value of a node. Raises BadYaml."""
    try:
        return yaml.SafeLoader("").construct_document(node)
    except yaml.YAMLError as error:
        raise _bad(error) from None
    except (ValueError, LookupError, AttributeError, TypeError):  # of PyYAML's constructors: 0b_, !!bool x, !!int ''
        raise BadYaml("a value is not what its form or its tag says", node.start_mark.line + 1) from None


def compose(text: bytes | str, bytes_max: int) -> yaml.Node | None:
    """Returns the root node of a YAML document, None for an empty one. Raises BadYaml."""
    if len(text) > bytes_max:
        raise BadYaml(f"it is larger than {bytes_max} bytes")
    try:
        _check_bounds(text, bytes_max // BYTES_PER_VALUE)
        root: yaml.Node | None = yaml.compose(text, LOADER)
    except UnicodeDecodeError:
        raise BadYaml("it is not UTF-8") from None
    except yaml.YAMLError as error:
        found = _bad(error)
        lines = len(text.splitlines())  # the parser's mark may be behind the end
        raise BadYaml(found.problem, min(found.line, lines) if found.line else None) from None
    return root


def _check_bounds(text: bytes | str, values_max: int) -> None:
    """Raises BadYaml for a text that is cheap to parse and costly to hold."""
    values = 0
    anchors: dict[str | None, int] = {}
    open_at: list[tuple[str | None, int]] = []
    event: Any
    for event in yaml.parse(text, LOADER):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_at.append((event.anchor, values))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_at.pop()
            if anchor is not None:
                anchors[anchor] = values - before
        elif isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_at):
                raise BadYaml(f"*{event.anchor} contains itself", line)
            values += anchors.get(event.anchor, 0)
        elif isinstance(event, yaml.NodeEvent):
            values += 1
        if len(open_at) > NESTING_MAX:
            raise BadYaml(f"lists and maps are nested deeper than {NESTING_MAX}", line)
        if values > values_max:
            raise BadYaml(f"its aliases unfold to more than {values_max} values", line)


def _bad(error: yaml.YAMLError) -> BadYaml:
    mark = getattr(error, "problem_mark", None)
    return BadYaml(getattr(error, "problem", None) or str(error), mark.line + 1 if mark else None)
