"""The one hardware seam: everything a probe knows of a machine comes through here."""
