"""Scores and labels without a run."""
