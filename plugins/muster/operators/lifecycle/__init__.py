"""What moves a node between its tests: arrival, reports of service, revalidation, and what people decide."""
