"""Work that probes put on devices (``products``, ``models``, memory, copies, the host), and what is measured meanwhile
(``under_load``). Knows no vendor's tool."""
