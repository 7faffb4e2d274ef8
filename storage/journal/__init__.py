"""Segments of records and token diagnostics, written and read."""
