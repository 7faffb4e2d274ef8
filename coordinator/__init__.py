"""The front door of the learner: prompt leases, intake, scheduling, batches.

Reading order: `headrace.trajectory` (what is counted), `persistence/state.py` (every change is a
record applied), `scheduling/` (`window_lifecycle.py`: what follows for windows; `base.py`,
`streaming.py`, `synchronous.py`: who may generate, what is trained next), `training/`
(`loss_masks.py`, `batches.py`: windows to messages), `loop.py` (the heart), `run.py`.
"""
