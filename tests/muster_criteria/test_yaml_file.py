"""YAML from outside: bounds that hold before the values are built, and the line of each problem."""

from __future__ import annotations

import pytest

from muster_criteria import yaml_file
from muster_criteria.yaml_file import NESTING_MAX, BadYaml

BYTES_MAX = 1_000_000
UNFOLDING = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: " + "[" * 100_000, 1, "nested deeper"),
        ("a:\n" + "".join("  " * level + "- \n" for level in range(1, NESTING_MAX + 2)), None, "nested deeper"),
        (UNFOLDING, 6, "unfold to more than"),
        ("a: &a\n  - *a", 2, "contains itself"),
        ("a: 1\nb: [", 2, "did not find"),
        ("a: *b", 1, "undefined alias"),
        ("a: !!python/object:os.system {}", 1, "could not determine a constructor"),
        (b"a: \xff", None, "utf-8"),
        ("a" * (BYTES_MAX + 1), None, "larger than"),
    ],
    ids=["brackets", "indents", "aliases", "cycle", "open", "no anchor", "tag", "bytes", "size"],
)
def test_a_text_beyond_the_bounds_is_refused(text: str | bytes, line: int | None, problem: str) -> None:
    with pytest.raises(BadYaml) as refused:
        yaml_file.load(text, BYTES_MAX)
    assert problem in refused.value.problem.lower()
    assert line is None or refused.value.line == line


def test_aliases_and_merges_within_the_bounds_are_read() -> None:
    read = yaml_file.load("base: &base {port: 22}\nnodes:\n- {<<: *base, name: a}\n- *base\n", BYTES_MAX)
    assert read["nodes"] == [{"port": 22, "name": "a"}, {"port": 22}]


def test_an_empty_text_has_no_value() -> None:
    assert yaml_file.load("", BYTES_MAX) is None
