"""``muster sku``: SKU files shown, checked, and learned from the fleet."""
