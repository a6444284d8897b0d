"""A pytest plugin: what a test tells Airflow to mask is forgotten with the test.

Airflow adds each connection's password and key to one regular expression of the process, and compiles all of it again.
Over thousands of tests this took seconds for a connection, and each line of a log is searched with it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator

import pytest

MASKERS = ("airflow._shared.secrets_masker.secrets_masker", "airflow.sdk._shared.secrets_masker.secrets_masker")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Restore what Airflow masked before the test."""
    maskers = [sys.modules[name]._secrets_masker() for name in MASKERS if name in sys.modules]
    before = [(each, set(each.patterns), each.replacer) for each in maskers]
    try:
        return (yield)
    finally:
        for masker, patterns, replacer in before:
            masker.patterns, masker.replacer = patterns, replacer
