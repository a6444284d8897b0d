"""SKU files: read strictly, linted, and calibrated from a fleet's own nodes."""
