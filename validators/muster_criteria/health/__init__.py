"""What follows from health observations between tests: the policy, and the decision on one observation."""
