"""Commands by which a person decides: on production, findings, repairs and racks."""
