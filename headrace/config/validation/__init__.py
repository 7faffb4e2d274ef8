"""Contradictory combinations of values, and what to change."""
