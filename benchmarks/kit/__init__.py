"""What benchmarks share: runs, rows, tables, plots, the state of the machine."""
