"""What is done once before task processes are forked: it has to spare them work, and to touch nothing."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib import font_manager

from muster.integration import policy
from muster.remote.job import zipapp
from muster.settings import settings
from muster.store.database.models import Base
from muster_criteria.sku_files import skus
from muster_criteria.stage import suite


@pytest.fixture
def warm() -> ModuleType:
    """Imported by the test that asks for it: the import judges and reports, in each process that collects tests."""
    return importlib.import_module("muster.integration.warm")


def test_it_touches_no_records_and_leaves_no_thread_behind(warm: ModuleType, muster_home: Path) -> None:
    before = set(threading.enumerate())
    warm.warm()
    assert not muster_home.exists()
    assert set(threading.enumerate()) <= before


def test_importing_it_makes_ready_what_each_task_would_set_up_for_itself(warm: ModuleType) -> None:
    fonts = vars(font_manager)["_get_font"]
    suite._frames.cache_clear()
    skus._parsed_policy.cache_clear()
    skus._as_changed.cache_clear()
    fonts.cache_clear()
    zipapp.packed.cache_clear()
    importlib.reload(warm)
    assert suite._frames.cache_info().currsize, "Great Expectations sets itself up at the first verdict"
    assert skus._parsed_policy.cache_info().currsize, "the kernel policy is parsed with the first SKU"
    parsed = skus._as_changed.cache_info().misses
    skus.current_sku("h100-sxm-8", settings().sku_folders)
    assert skus._as_changed.cache_info().misses == parsed, "a task asks for the SKU with the same folders"
    assert zipapp.packed.cache_info().currsize
    assert all(mapper.configured for mapper in Base.registry.mappers), "tables are mapped at the first query"
    assert fonts.cache_info().currsize, "fonts are read when the first chart is drawn"


def test_no_task_reads_a_sku_anew_that_was_read_before_the_fork() -> None:
    ours = [name for name in policy.dag_modules() if name.startswith("muster.operators.")]
    assert [name for name in ours if hasattr(importlib.import_module(name), "load_sku")] == []
