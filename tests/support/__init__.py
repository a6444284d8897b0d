"""What several rooms' tests stand on: a real OpenSSH server."""
