"""Work on nodes: SSH with a pinned host key, launching the node side, and jobs that outlive their connection."""
