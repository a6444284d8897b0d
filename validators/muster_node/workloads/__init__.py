"""Work that probes put on devices, and what is measured meanwhile. Knows no vendor's tool."""
