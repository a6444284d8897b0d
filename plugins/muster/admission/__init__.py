"""The interface to the schedulers that allocate nodes to users."""
