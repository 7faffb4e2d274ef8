"""What starts and watches the processes of a run: plan, supervisor, children, monitor, display."""
