"""What the kernel reports: the policy for its messages, and the findings of a stage."""
