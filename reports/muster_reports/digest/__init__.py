"""The fleet digest: what happened to a fleet, or to one team's part of it, in a period. One file a section."""
