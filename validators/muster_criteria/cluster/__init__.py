"""The verdict on a block of nodes: lost members, silent corruption, stragglers."""
