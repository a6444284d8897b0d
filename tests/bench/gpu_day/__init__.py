"""All measurements of a machine with a GPU in 25 minutes, in order of value; see ``__main__``."""
