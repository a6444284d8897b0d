"""The values and names of the domain, one noun a module. Imports nothing of muster."""
