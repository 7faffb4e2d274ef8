"""Reading of answers, and their comparison with the reference."""
