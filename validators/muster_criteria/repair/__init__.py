"""What is done about a fault, as data: which evidence is taken, and which repairs are tried in which order."""
