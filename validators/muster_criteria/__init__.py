"""The judge: what "healthy" means. Pure decisions on the controller; never touches a node, never imports Airflow."""
