"""The thin layer between Airflow's tasks and the rooms that decide: plans, remote jobs, the judge, the records."""
