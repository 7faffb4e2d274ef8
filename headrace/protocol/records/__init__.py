"""What the journal holds."""
