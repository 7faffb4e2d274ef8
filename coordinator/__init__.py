"""The front door of the learner: prompt leases, intake, ledger, scheduling, batches.

Reading order: `ledger.py` and `trajectories.py` (what is counted), `state.py` (every change is a
record applied), `schedule.py` (who may generate, what is trained next), `batches.py` (windows to
messages), `loop.py` (the heart), `run.py`.
"""
