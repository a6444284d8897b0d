"""What commands do with Airflow: start DAG runs, follow them, read the questions that wait."""
