"""The controller: records, lifecycle, leases, remote jobs, operators, planning, command line."""

__version__ = "0.1.0"
