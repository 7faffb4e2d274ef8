"""One update, computed again from what is stored."""
