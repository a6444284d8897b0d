"""The node side of Muster: measures, never judges.

Runs on the node as one zipapp, on Python 3.9 or later, with nothing but the standard library at import.
"""

__version__ = "1.0.0"
