"""What becomes of GPUs, ports, sensors and the host under a load: states, counters, temperatures, CPU time."""
