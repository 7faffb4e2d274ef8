"""Start and supervision of a run's processes: plan, supervisor, children, monitor, display."""
