"""A SKU file of a fleet's own: read and checked whole. Seeds are the shipped files."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import yaml

from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import SHIPPED, lint_sku
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

_FOLDER = tempfile.TemporaryDirectory(prefix="muster-fuzz-")
BOUNDS = ("at_least", "at_most", "warn_at_least", "warn_at_most")


@functools.cache
def _shipped() -> tuple[tuple[str, str, Any], ...]:
    texts = [(path.name, path.read_text()) for path in sorted(SHIPPED.glob("*.yaml"))]
    return tuple((name, text, yaml.safe_load(text)) for name, text in texts)


def _draw(rng: random.Random) -> Sample:
    name, text, values = rng.choice(_shipped())
    draw = rng.random()
    if draw < 0.3:
        return Sample((name, mutate.text(rng, text).encode("utf-8", "surrogatepass")))
    read: Any = copy.deepcopy(values)
    spoilt = ""
    if draw < 0.7:
        read = mutate.document(rng, read)
    else:
        spoilt = _spoil(rng, read)
    return Sample((name, _written(read).encode("utf-8", "surrogatepass")), spoilt)


def _written(read: Any) -> str:
    """The document as YAML. libyaml writes no surrogates, PyYAML no deep nesting; JSON is YAML too."""
    for dumper in (getattr(yaml, "CSafeDumper", yaml.SafeDumper), yaml.SafeDumper):
        with contextlib.suppress(UnicodeEncodeError, RecursionError):
            return str(yaml.dump(read, Dumper=dumper, sort_keys=False))
    return json.dumps(read, default=str)


def _spoil(rng: random.Random, read: dict[str, Any]) -> str:
    """Makes a bound that no value breaks, or takes its source away; "" if the file has no bound of its own."""
    limits = [each for each in read.get("limits") or () if any(key in each for key in BOUNDS)]
    if not limits:
        return ""
    limit = rng.choice(limits)
    if rng.random() < 0.5:
        del limit["source"]
        return f"{limit['metric']} without a source"
    key = rng.choice([key for key in BOUNDS if key in limit])
    limit[key] = rng.choice((float("nan"), float("inf"), float("-inf"), None, "", "many"))
    return f"{limit['metric']} with {key} {limit[key]!r}"


def _read(sample: Sample) -> Taken:
    name, sent = sample.data
    path = Path(_FOLDER.name) / name
    path.write_bytes(sent)
    problems = lint_sku(path)
    return Taken([str(problem) for problem in problems], well=not problems)


EDGE = Edge(_draw, _read, (SkuError,), peak_bytes=64 * 2**20)
