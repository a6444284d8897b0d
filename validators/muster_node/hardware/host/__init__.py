"""A real machine without its GPUs: CPUs, memory, disks, network and kernel log, from /proc, /sys and short commands."""
