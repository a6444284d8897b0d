"""A measurement's labels as one text and back, and what makes measurements one figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from muster_criteria.devices import kind_of

Labels = tuple[tuple[str, str], ...]


class Key(NamedTuple):
    """One figure, however many devices measured it. The memory of a host and that of a GPU are two."""

    kind: str
    metric: str
    labels: Labels
    unit: str

    @classmethod
    def of(cls, device: str, metric: str, labels: Iterable[tuple[str, str]], unit: str) -> Key:
        """The key of what that device measured."""
        return cls(kind_of(device), metric, tuple(sorted(labels)), unit)


def labels_text(labels: Labels | Mapping[str, str]) -> str:
    """ "dtype=bf16,op=copy": labels as one name. Neither sign is allowed within a label, so it can be undone."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return ",".join(f"{key}={value}" for key, value in sorted(pairs))


def labels_of(text: str) -> Labels:
    """The labels that ``labels_text`` made a name of."""
    return tuple((key, value) for key, _, value in (pair.partition("=") for pair in text.split(",") if pair))


def labelled(metric: str, labels: Labels | Mapping[str, str]) -> str:
    """ "gemm_rate[dtype=bf16]": a metric with its labels, as messages write it."""
    return f"{metric}[{labels_text(labels)}]" if labels else metric
