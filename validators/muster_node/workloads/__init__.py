"""Work that probes put on devices, and what is measured beside it. Knows no vendor's tool."""
