"""One stage's verdict: measurements become rows, rules judge rows, coverage is counted, findings are written."""
