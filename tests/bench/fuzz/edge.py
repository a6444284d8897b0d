"""One edge: how to draw its inputs, how to read them, and what counts as a defect."""

from __future__ import annotations

import dataclasses
import random
import time
import traceback
import tracemalloc
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

TRACEBACKS, UNBOUNDED, INJECTIONS, FALSE_PASSES = "tracebacks", "unbounded_reads", "injections", "false_passes"
DEFECTS = (TRACEBACKS, UNBOUNDED, INJECTIONS, FALSE_PASSES)
CPU_LIMIT_S = 20.0
"""CPU seconds, far above what any input needs; an input that takes longer is one that the edge does not bound."""
MEMORY_EACH = 25
"""One input of so many, and each marked ``large``, is read under tracemalloc, which slows it several times."""
EXAMPLES = 5


@dataclasses.dataclass(frozen=True)
class Sample:
    """One input. ``spoilt``: required evidence was taken away or a fault planted, so it may not count as well; names
    how. ``large``: made to need much memory.
    """

    data: Any
    spoilt: str = ""
    large: bool = False


@dataclasses.dataclass(frozen=True)
class Taken:
    """What the edge made of an input. ``texts``: each is printed in one line of a page, log or terminal.
    ``injections``: descriptions of hostile text that reached where it acts. ``well``: nothing wrong was found.
    """

    texts: Iterable[str] = ()
    injections: Iterable[str] = ()
    oversize: str = ""
    well: bool = False


@dataclasses.dataclass(frozen=True)
class Edge:
    """``draw`` makes an input; ``read`` feeds it to the product. ``refusals``: the errors that a user can resolve,
    whose text is one line. ``peak_bytes``: the most that reading one input may allocate.
    """

    draw: Callable[[random.Random], Sample]
    read: Callable[[Sample], Taken]
    refusals: tuple[type[Exception], ...]
    peak_bytes: int


@dataclasses.dataclass
class Tally:
    """Defects by kind, and the first examples of each."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, kind: str, what: str) -> None:
        """Count a defect."""
        self.counts[kind] += 1
        if self.counts[kind] <= EXAMPLES:
            self.examples.append(f"{kind}: {what}")


def breaks_line(text: str) -> bool:
    """Whether a text has control, bidirectional or invisible characters, which forge lines of a log or terminal."""
    return any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in text)


def run(edge: Edge, inputs: int, seed: int) -> Tally:
    """Reads ``inputs`` inputs drawn with ``seed``; returns the defects."""
    rng, tally = random.Random(seed), Tally()
    for number in range(inputs):
        sample = edge.draw(rng)
        measured = sample.large or number % MEMORY_EACH == 0
        began = time.process_time()
        if measured:
            tracemalloc.start()
        try:
            _read(edge, sample, tally)
        finally:
            if measured:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                if peak > edge.peak_bytes:
                    tally.add(UNBOUNDED, f"input {number}: {peak / 2**20:.0f} MiB")
        if time.process_time() - began > CPU_LIMIT_S:
            tally.add(UNBOUNDED, f"input {number}: more than {CPU_LIMIT_S:g} CPU seconds")
    return tally


def _read(edge: Edge, sample: Sample, tally: Tally) -> None:
    try:
        taken = edge.read(sample)
        texts, injections = list(taken.texts), list(taken.injections)
    except edge.refusals as refusal:
        taken, texts, injections = Taken(), [str(refusal)], []
    except Exception:
        tally.add(TRACEBACKS, traceback.format_exc(limit=-3).strip().replace("\n", " | "))
        return
    for text in texts:
        if breaks_line(text):
            tally.add(INJECTIONS, f"a line break or control character in {text[:200]!r}")
            break
    for what in injections:
        tally.add(INJECTIONS, what)
    if taken.oversize:
        tally.add(UNBOUNDED, taken.oversize)
    if sample.spoilt and taken.well:
        tally.add(FALSE_PASSES, f"{sample.spoilt}: found well")
