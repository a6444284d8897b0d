"""How a node's state may change: transitions, the gate, persons' decisions, how a run ends."""
