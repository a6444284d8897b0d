"""The key of a figure in words and in an address. Pure."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, unquote, urlencode

from muster_criteria.labels import Key


def words(key: Key) -> str:
    """The metric with the kind of its devices and the values of its labels: "gemm_rate (gpu, bf16)".

    Without the kind for what is measured of the node as a whole.
    """
    about = [*([key.kind] if key.kind != "node" else ()), *(text for _, text in key.labels)]
    return f"{key.metric} ({', '.join(about)})" if about else key.metric


def address(key: Key) -> str:
    """The key as one text: ``gpu:gemm_rate:TFLOPS?dtype=bf16``."""
    parts = ":".join(quote(part, safe="") for part in (key.kind, key.metric, key.unit))
    return f"{parts}?{urlencode(key.labels)}" if key.labels else parts


def read(text: str) -> Key:
    """The key that ``address`` made a text of; of any other text, one that no figure has."""
    parts, _, labels = text.partition("?")
    kind, metric, unit, *_ = [*map(unquote, parts.split(":")), "", "", ""]
    return Key(kind, metric, tuple(parse_qsl(labels, keep_blank_values=True)), unit)
