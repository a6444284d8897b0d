"""What follows for nodes in service and those that left it: health, repair, spares, escapes."""
