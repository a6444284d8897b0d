"""The kernel log: read without assuming root, as lines "<priority>[seconds since boot] message".

The number in front is the kernel's own (facility · 8 + priority, as ``dmesg --raw`` prints it); it is absent where the
source does not tell it. A message of several lines is one line here.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from muster_node import privilege
from muster_node.hardware.host.sysfs import output_of

_DMESG_COMMANDS = (privilege.DMESG, ("dmesg",))  # BSD-like and very old ones do not know -r
_JOURNAL = (
    "journalctl", "-k", "-b", "-q", "--no-pager", "-o", "json",
    "--output-fields=MESSAGE,PRIORITY,SYSLOG_FACILITY,_SOURCE_MONOTONIC_TIMESTAMP",
)  # fmt: skip

LINE_MAX = 4096
"""Characters of a line that are read. The kernel's own limit is 2,048 (``PRINTK_MESSAGE_MAX``); in a longer line
patterns would take time that grows with its square."""

_KMSG = re.compile(r"(\d+),\d+,(\d+),[^;]*;(.*)")
_ESCAPED = re.compile(r"(?:\\x0a|\\x09)\s*")
"""A line break or tab within a record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg)."""


def read() -> list[str] | None:
    """Lines of the kernel log, oldest first, from /dev/kmsg, dmesg or journalctl; None where none can be read.

    No kernel that booted has an empty log: one is a device that a container put in its place (/dev/null in LXC).
    """
    lines = parse_kmsg(_read_kmsg() or "")
    if lines:
        return lines
    for command in _DMESG_COMMANDS:
        output = output_of(command)
        if output:
            return parse_dmesg(output)
    output = output_of(_JOURNAL)
    if output:
        return parse_journal(output)
    output = output_of(privilege.as_root(privilege.DMESG))
    return parse_dmesg(output) if output else None


def _read_kmsg() -> str | None:
    """All records of the kernel's ring buffer; each read returns one record, EAGAIN ends it."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    records = []
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:  # overwritten while we read: go on with the next record
                continue
            except OSError:
                break
            if not record:
                break
            records.append(record)
    finally:
        os.close(descriptor)
    return b"".join(records).decode("utf-8", "replace")


def parse_kmsg(text: str) -> list[str]:
    """Records of /dev/kmsg; continuation lines (dictionaries of a record) are dropped."""
    found = (_KMSG.match(line) for line in text.split("\n"))
    return [_line(each.group(1), int(each.group(2)) / 1e6, each.group(3)) for each in found if each]


def parse_dmesg(text: str) -> list[str]:
    """Lines of dmesg, raw or not. An indented line without a time continues the message above it."""
    lines: list[str] = []
    for line in text.split("\n"):
        if line[:1].isspace() and line.strip() and lines:
            lines[-1] = f"{lines[-1]} {line.strip()}"[:LINE_MAX]
        elif line.strip():
            lines.append(line[:LINE_MAX])
    return lines


def parse_journal(text: str) -> list[str]:
    """Entries of ``journalctl -o json``, one a line. An entry that is none is dropped."""
    lines = []
    for entry in map(_entry, text.split("\n")):
        if entry is None:
            continue
        message = entry.get("MESSAGE")
        if isinstance(message, list):  # one that is not UTF-8 is given as bytes
            message = bytes(each & 255 for each in message if isinstance(each, int)).decode("utf-8", "replace")
        stamp, priority = _whole(entry.get("_SOURCE_MONOTONIC_TIMESTAMP")), _whole(entry.get("PRIORITY"))
        facility = _whole(entry.get("SYSLOG_FACILITY")) or 0
        number = "" if priority is None else str(8 * facility + priority)
        lines.append(_line(number, None if stamp is None else stamp / 1e6, str(message or "").replace("\n", " ")))
    return lines


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else None


def _line(number: str, seconds: float | None, message: str) -> str:
    stamp = "" if seconds is None else f"[{seconds:12.6f}] "
    return "{}{}{}".format(f"<{number}>" if number else "", stamp, _ESCAPED.sub(" ", message)[:LINE_MAX])
