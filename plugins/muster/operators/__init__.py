"""The thin layer between Airflow's tasks and the code that decides: plans, remote jobs, the judge, the records."""
