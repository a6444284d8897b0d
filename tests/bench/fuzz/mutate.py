"""Mutations of real inputs: of a JSON document, of lines of text, and of bytes."""

from __future__ import annotations

import random
from typing import Any

HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7*7 }}", "$(touch pwned)", "`id`", "; id",
    "gpu0\nPASS: all measurements", "\r\n.\r\n", "\x1b[2J\x1b[32mPASS", "\u202eSSAP", "a\u2028b", "\x00", "\ud800",
    "../../../etc/passwd", "/etc/shadow", "-oProxyCommand=id", "'; DROP TABLE node; --", "=cmd|' /C calc'!A0",
    "%s%n", "A" * 5_000, "ﬀ" * 300,
)  # fmt: skip
"""Texts that are harmless as data, and do harm in a page, a shell, a path, a log, a terminal or a table."""

NUMBERS = (
    0, -1, 1, 255, -(2**31), 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**40, 1e308, -1e308, 5e-324,
    float("nan"), float("inf"), float("-inf"), True, False,
)  # fmt: skip
OTHERS = (None, [], {}, [[]], {"": None}, "", "0", "NaN", "1e999", " ", "null")
DEPTH = 300


def nested(depth: int) -> Any:
    """Returns lists in lists."""
    inner: Any = []
    for _ in range(depth):
        inner = [inner]
    return inner


def anything(rng: random.Random) -> Any:
    """Returns a value that a field is unlikely to expect."""
    draw = rng.random()
    if draw < 0.4:
        return rng.choice(HOSTILE)
    if draw < 0.75:
        return rng.choice(NUMBERS)
    return nested(DEPTH) if draw > 0.98 else rng.choice(OTHERS)


def document(rng: random.Random, root: Any, times: int = 3) -> Any:
    """Mutates up to ``times`` places of a JSON document in place; returns it, or what replaced it."""
    for _ in range(rng.randint(1, times)):
        holders = list(_holders(root))
        if not holders:
            return anything(rng)
        holder = rng.choice(holders)
        if isinstance(holder, dict):
            _of_map(rng, holder)
        else:
            _of_list(rng, holder)
    return root


def _holders(root: Any) -> Any:
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if isinstance(each, (dict, list)):
            if each:
                yield each
            waiting.extend(each.values() if isinstance(each, dict) else each)


def _of_map(rng: random.Random, holder: dict[Any, Any]) -> None:
    key = rng.choice(list(holder))
    draw = rng.random()
    if draw < 0.2:
        del holder[key]
    elif draw < 0.3:
        holder[rng.choice(HOSTILE)] = holder.pop(key)
    elif draw < 0.4:
        holder[rng.choice((*HOSTILE, "extra"))] = anything(rng)
    else:
        holder[key] = _changed(rng, holder[key])


def _of_list(rng: random.Random, holder: list[Any]) -> None:
    place = rng.randrange(len(holder))
    draw = rng.random()
    if draw < 0.2:
        del holder[place]
    elif draw < 0.4:
        holder.insert(rng.randrange(len(holder) + 1), holder[place])
    elif draw < 0.5:
        holder.extend(holder[place : place + 1] * rng.choice((10, 100, 1_000)))
    else:
        holder[place] = _changed(rng, holder[place])


def _changed(rng: random.Random, value: Any) -> Any:
    if isinstance(value, str) and rng.random() < 0.5:
        place = rng.randint(0, len(value))
        return value[:place] + rng.choice(HOSTILE) + value[place:]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and rng.random() < 0.5:
        return value * rng.choice((-1, 0, 0.5, 1.001, 1e3, 1e30))
    return anything(rng)


def text(rng: random.Random, whole: str, times: int = 4) -> str:
    """Returns the text with up to ``times`` mutations of its lines and characters."""
    lines = whole.split("\n")
    for _ in range(rng.randint(1, times)):
        place = rng.randrange(len(lines))
        draw = rng.random()
        if draw < 0.15:
            del lines[place]
            lines = lines or [""]
        elif draw < 0.3:
            lines.insert(rng.randint(0, len(lines)), lines[place])
        elif draw < 0.4:
            lines = lines[: place + 1]
            lines[-1] = lines[-1][: rng.randint(0, len(lines[-1]))]
        elif draw < 0.45:
            lines[place] = lines[place][:5_000] * rng.choice((10, 1_000))
        elif draw < 0.6:
            lines[place] = _other_word(rng, lines[place])
        else:
            at = rng.randint(0, len(lines[place]))
            lines[place] = lines[place][:at] + rng.choice((*HOSTILE, "\t", "  ", ",", ":")) + lines[place][at:]
    return "\n".join(lines)


def _other_word(rng: random.Random, line: str) -> str:
    words = line.split(" ")
    words[rng.randrange(len(words))] = str(anything(rng))
    return " ".join(words)


def raw(rng: random.Random, whole: bytes, times: int = 4) -> bytes:
    """Returns the bytes with some flipped, cut off, repeated or not in UTF-8."""
    changed = bytearray(whole)
    for _ in range(rng.randint(1, times)):
        if not changed:
            break
        place = rng.randrange(len(changed))
        draw = rng.random()
        if draw < 0.5:
            changed[place] ^= 1 << rng.randrange(8)
        elif draw < 0.7:
            del changed[place:]
        elif draw < 0.85:
            changed[place:place] = bytes(changed[place : place + 64]) * rng.choice((1, 50))
        else:
            changed[place:place] = rng.choice((b"\xff\xfe", b"\xc0\x80", b"\x00", b"\xed\xa0\x80"))
    return bytes(changed)
