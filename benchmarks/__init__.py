"""One module a claim; each prints a table and, with --json, one JSON object as its last line.

Every such object, and every row in `results`, says its format, its commit, the machine and the load
(`benchmarks.kit.rows`). `results/2026-11` has the rows of that month, which `docs/evidence.md` and
the
README's figures are made of.
"""
