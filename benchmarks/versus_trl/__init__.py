"""Comparison with TRL's trainer."""
