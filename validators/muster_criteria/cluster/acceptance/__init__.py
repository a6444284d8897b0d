"""The training of a block as a table for people: what it reached, what held it up, and what a job will get."""
