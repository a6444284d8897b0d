"""What a stage's verdict takes from outside the stage: waivers, goldens, suspects, past faults, other nodes."""
