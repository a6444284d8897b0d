"""Labels of a metric as one name, as readings and snapshots have them."""

from __future__ import annotations

from collections.abc import Mapping

from muster_criteria.rows import Labels


def labels_text(labels: Labels | Mapping[str, str]) -> str:
    """ "dtype=bf16,op=copy": labels as one name. Neither sign is allowed within a label, so it can be undone."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return ",".join(f"{key}={value}" for key, value in sorted(pairs))


def labels_of(text: str) -> Labels:
    """The labels that ``labels_text`` made a name of."""
    return tuple((key, value) for key, _, value in (pair.partition("=") for pair in text.split(",") if pair))
