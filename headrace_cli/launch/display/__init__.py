"""Terminal display of a run."""
