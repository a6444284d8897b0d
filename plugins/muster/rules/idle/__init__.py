"""Which idle nodes to test next, and how: risk, worth, capacity, forecast. Pure decisions over arrays of nodes."""
