"""A fleet as the yardstick of its nodes: readings, frozen peer snapshots, device histories, and the prefilter.

Everything here is a pure function of frames: no database, no Airflow, no clock. The judge of one node and the
prefilter of ten thousand call the same functions.
"""
