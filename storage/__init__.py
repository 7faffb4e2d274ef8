"""SQL and Arrow: the only code that touches run data on disk; queries and exports."""
