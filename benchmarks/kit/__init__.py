"""Shared parts of benchmarks: runs, rows, tables, plots, the state of the machine."""
