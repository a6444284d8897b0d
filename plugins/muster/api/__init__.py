"""What programs read of Muster over HTTP, inside Airflow's API server: metrics for Prometheus, and a read API."""
