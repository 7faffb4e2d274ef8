"""Speed of parts and of the whole."""
