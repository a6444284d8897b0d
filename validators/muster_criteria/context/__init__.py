"""Input of a stage's verdict from outside the stage: waivers, goldens, suspects, past faults, other nodes."""
