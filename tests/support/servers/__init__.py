"""What tests talk to: real servers of this machine, and stand-ins for those that it cannot have."""
