"""What an answer says, and whether it is the reference."""
