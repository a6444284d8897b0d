"""Verdicts, and what they depend on: SKU files, peers, goldens, waivers, XID policies; certificates."""
