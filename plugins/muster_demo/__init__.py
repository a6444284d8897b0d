"""The demo: a small fleet on this machine, taken through its qualification by a real Airflow."""
