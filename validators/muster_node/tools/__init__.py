"""Vendors' tools: running one within limits, and one parser for each tool's output (text in, values out)."""
