"""The front door of the learner: prompt leases, intake, scheduling, batches.

Reading order: the package `sequence` (what is counted), `state.py` (every change is a record
applied), `settle.py` (what follows for windows), `schedule.py`, `stream.py`, `rounds.py` (who may
generate, what is trained next), `masks.py` and `batches.py` (windows to messages), `loop.py` (the
heart), `run.py`.
"""
