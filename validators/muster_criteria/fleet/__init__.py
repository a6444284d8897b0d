"""A fleet as the yardstick of its nodes: readings, frozen peer snapshots, device histories, and the sweep over them.

Everything here is a pure function of frames: no database, no Airflow, no clock. The judge of one node and the sweep of
ten thousand call the same functions.
"""
