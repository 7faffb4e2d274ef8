"""Start and supervision of a run's processes."""
