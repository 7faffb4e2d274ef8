"""Coordinator of a run: prompt leases, intake, scheduling, batches.

Reading order: `headrace.trajectory` (accounting), `persistence/state.py` (every change is an
applied record), `scheduling/` (`window_lifecycle.py`: states of windows; `base.py`, `streaming.py`,
`synchronous.py`: which trajectories may generate, which windows are trained next), `training/`
(`loss_masks.py`, `batches.py`: windows to messages), `loop.py` (the event loop), `run.py`.
"""
