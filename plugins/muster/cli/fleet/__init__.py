"""What the fleet does: start and follow runs, and show its state, its plan and its digest."""
