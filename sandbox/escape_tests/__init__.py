"""Programs that try to get out, and what each must not reach."""
