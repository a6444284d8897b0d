"""The controller: records, lifecycle, leases, remote jobs, operators, planning, command line."""

from muster_node import __version__ as __version__
