"""Checks of a configuration against this machine, and its explanation."""
