"""A pause: a person keeps all tests away from a node until a day."""

from __future__ import annotations
