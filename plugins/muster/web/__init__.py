"""The Fleet page inside Airflow: server-rendered pages over the fleet records. Nothing is loaded from outside."""

PREFIX = "/muster"
"""Where Airflow's API server mounts the page."""
