"""Behaviour under faults, hostile input and hostile programs."""
