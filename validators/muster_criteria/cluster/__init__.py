"""The verdict on a block of nodes: who was lost, who corrupts, who is slow."""
