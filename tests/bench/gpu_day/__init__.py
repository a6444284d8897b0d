"""All measurements of a machine with a GPU in 15 minutes, in order of value; see ``__main__``."""
