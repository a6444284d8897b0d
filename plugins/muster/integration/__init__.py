"""What Airflow loads or is called by: cluster policy, listeners, warm imports, REST client, run ids."""
