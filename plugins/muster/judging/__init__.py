"""From stored results to the judge's input: references, repeated runs, BMC readings, re-evaluation."""
