"""One module an edge, each with an ``EDGE``; the edge's name is the module's, with "-" for "_"."""
