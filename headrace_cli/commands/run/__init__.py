"""Commands that start or end a run."""
