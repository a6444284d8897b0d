"""Nodes and BMCs as people and provisioning systems describe them, validated."""
