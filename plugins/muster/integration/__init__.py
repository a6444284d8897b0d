"""The interfaces with Airflow: cluster policy, listeners, warm imports, REST client, run ids."""
