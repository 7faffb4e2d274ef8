"""The only code that touches run data on disk.

The journal (Arrow IPC streams) is the truth, SQL in `database` is its projection. `run_store` is
the coordinator's side (writing), `queries` and `exports` are everybody else's (reading).
"""
