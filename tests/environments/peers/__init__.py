"""Environments as people write them for other libraries, and the loops of those libraries."""
