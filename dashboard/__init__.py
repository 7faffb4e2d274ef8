"""The web page on a root of runs: read-only, through storage.queries."""
