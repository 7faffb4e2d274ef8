"""Tasks made on the fly."""
