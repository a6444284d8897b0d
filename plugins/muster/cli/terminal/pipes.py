"""Lets a command whose reader has ended (head, less) continue to its end, with its own exit status."""

from __future__ import annotations

import io
import sys
from typing import Any, BinaryIO


class _Pipe(io.FileIO):
    """A stream of this process that drops what it writes once its reader has ended."""

    def write(self, data: Any) -> int:
        """Write the bytes, or drop them."""
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Keep a command running when the readers of its output have ended: half of its work is worse than all.

    A character that the streams' encoding lacks is escaped, and is no error. Streams that are not this process's own
    stay as they are.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            raw = _Pipe(stream.fileno(), "w", closefd=False)
            # Unbuffered, as by PYTHONUNBUFFERED, the text layer is above the file itself.
            below: BinaryIO = raw if stream.write_through else io.BufferedWriter(raw)
            setattr(sys, name, io.TextIOWrapper(
                below, stream.encoding, "backslashreplace",
                line_buffering=stream.line_buffering, write_through=stream.write_through,
            ))  # fmt: skip
