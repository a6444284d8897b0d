"""Validates inventories of nodes from people and provisioning systems."""
