"""Which combinations of values cannot work, and what to change."""
