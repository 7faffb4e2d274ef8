"""Cached reads of a run for the views, through `storage.queries` alone."""
