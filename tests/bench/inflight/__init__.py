"""Many nodes in flight at once: what each of them costs, and which component bends first."""

from tests.support import airflow_home

assert airflow_home.HOME, "before anything imports Airflow"
