"""Lifecycle and audit events for receivers outside, such as a SIEM."""
