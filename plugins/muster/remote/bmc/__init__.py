"""A node's BMC, read through Redfish."""
