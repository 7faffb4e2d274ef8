"""What processes say to each other."""
