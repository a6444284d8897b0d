"""An Airflow of the tests' own: import this before anything that imports Airflow."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if "airflow" in sys.modules and "AIRFLOW_HOME" not in os.environ:
    raise RuntimeError("Airflow was imported before tests.support.airflow_home: it would use the developer's own")
# Tests that run in several processes (pytest-xdist) inherit one environment, and must not share an Airflow.
MINE = "MUSTER_TESTS_AIRFLOW_" + os.environ.get("PYTEST_XDIST_WORKER", "")
if MINE not in os.environ:
    HOME = Path(tempfile.mkdtemp(prefix="muster-airflow-"))
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
    os.environ[MINE] = str(HOME)
    os.environ.update(
        {
            "AIRFLOW_HOME": str(HOME),
            # With a limit Airflow takes the process's alarm clock, and pytest-timeout's with it: hangs would last.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "0",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        }
    )
HOME = Path(os.environ[MINE])
