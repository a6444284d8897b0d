"""XIDs: the policy table, and what becomes of a stage's XIDs under it."""
