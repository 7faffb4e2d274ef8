"""Schedulers, one per mode: windows that may begin, and windows of the next batch."""
