"""Benchmarks: each prints a table and, with --json, one JSON object at the end.

Every such object, and every row in `results`, says its format, its commit, the machine and the load
(`benchmarks.kit.rows`). `results/2026-11` has the rows of that month, the source of the figures in
`docs/evidence.md` and the README.
"""
