"""What the fleet as a whole has measured: peer readings and snapshots, goldens, suspects, past faults, XIDs."""
