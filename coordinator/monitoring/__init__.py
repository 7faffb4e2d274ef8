"""Stalls: the parts that a run waits for, and their report to users."""
