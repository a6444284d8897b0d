"""Verdicts, and what is decided on them: admission, certificates, waivers, held verdicts."""
