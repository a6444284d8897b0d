"""Device events: the kernel's messages, and errors that a driver reports under a code, each kind judged by a policy."""
