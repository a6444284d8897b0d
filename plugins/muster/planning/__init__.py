"""What to do next with which nodes: pure choices, and previews of what a command would do."""
