"""The base of everything that is read from YAML."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Written(BaseModel):
    """Base of everything read from YAML: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def as_tuple(value: object) -> object:
    """A YAML list as a tuple, since models are frozen."""
    return tuple(value) if isinstance(value, list) else value
