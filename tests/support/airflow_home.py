"""Sets AIRFLOW_HOME and Airflow's settings for the tests. Import it before anything that imports Airflow."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if "airflow" in sys.modules and "AIRFLOW_HOME" not in os.environ:
    raise RuntimeError("Airflow was imported before tests.support.airflow_home: it would use the developer's own home")
# Worker processes of pytest-xdist inherit one environment and must not share an Airflow home.
_VARIABLE = "TESTS_AIRFLOW_HOME_" + os.environ.get("PYTEST_XDIST_WORKER", "")
if _VARIABLE not in os.environ:
    HOME = Path(tempfile.mkdtemp(prefix="muster-airflow-"))
    atexit.register(shutil.rmtree, HOME, ignore_errors=True)
    os.environ[_VARIABLE] = str(HOME)
    os.environ.update(
        {
            "AIRFLOW_HOME": str(HOME),
            # Several test processes share the cores: more threads would only wait for each other.
            "OPENBLAS_NUM_THREADS": "1",
            # With a limit, Airflow replaces the alarm of pytest-timeout, and a test that hangs would not be ended.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "0",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        }
    )
HOME = Path(os.environ[_VARIABLE])
