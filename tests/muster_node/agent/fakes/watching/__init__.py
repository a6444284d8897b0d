"""The probe that the agent itself measures, without the others of the real package."""
