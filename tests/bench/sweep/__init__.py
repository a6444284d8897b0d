"""The health sweep: how fast it reads and records, and what its policy makes of a simulated year."""
