"""The node's life: transitions, admission gate, circuit breaker, selection of nodes to test. Pure decisions."""
