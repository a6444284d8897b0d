"""Commands about runs, their verdicts, and what verdicts cite."""
