"""The interfaces with Airflow: cluster policy, listeners, preloaded modules, REST client, run ids."""
