"""Which prompt is asked next, and who has it: prompts, leases."""
