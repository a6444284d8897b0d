"""What is done once before task processes are forked: it has to spare them work, and to touch nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from muster.integration import warm
from muster.store.database.models import Base
from muster_criteria.sku_files import skus
from muster_criteria.stage import suite

READY = """
import sys
from matplotlib import font_manager
from muster.integration import warm
print(font_manager._get_font.cache_info().currsize)
"""


def test_it_touches_no_records_and_leaves_no_thread_behind(muster_home: Path) -> None:
    before = set(threading.enumerate())
    warm.warm()
    assert not muster_home.exists()
    assert set(threading.enumerate()) <= before


def test_what_each_task_would_set_up_for_itself_is_ready() -> None:
    suite._frames.cache_clear()
    skus._parsed_policy.cache_clear()
    warm.warm()
    assert suite._frames.cache_info().currsize, "Great Expectations sets itself up at the first verdict"
    assert skus._parsed_policy.cache_info().currsize, "the kernel policy is parsed with the first SKU"
    assert all(mapper.configured for mapper in Base.registry.mappers), "tables are mapped at the first query"


def test_importing_it_draws_a_chart() -> None:
    done = subprocess.run([sys.executable, "-c", READY], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) > 0, "fonts are read when the first chart is drawn"
