"""Engines without a run, and judges behind an HTTP server."""
