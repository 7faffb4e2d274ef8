"""Who waits for whom, and what people see of it."""
