"""Prompt sources: what a run is trained and evaluated on, and the scripts that make its models."""
