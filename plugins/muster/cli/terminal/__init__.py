"""What commands share: options, tables and JSON, dry runs."""
