"""What leaves the records: exported files, thinned telemetry for charts, the stored bytes of results."""
