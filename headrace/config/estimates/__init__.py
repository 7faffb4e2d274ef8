"""Estimates of a configuration's memory, from its sizes."""
