"""How members of a block meet and stay together: presence, phases, lost members, and the ranks of each node."""
