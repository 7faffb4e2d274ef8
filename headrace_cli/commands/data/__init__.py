"""Commands that take data out of a run."""
