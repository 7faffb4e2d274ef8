"""What faults, hostile input and hostile programs do."""
