"""Reward workers: finished responses in, rewards out.

Reading order: `run.py` (the heart), `worker/` (`pool.py`, `source_workers.py`, `child_process.py`:
killable children, for each source its own; `child.py`), `verifier.py`, `build.py`, `kinds/` (one
file each), `answers/math_answer.py` with what it reads answers by; `functions/` for those of users,
`preflight.py`, which looks at them before a run starts, and `labeling/`, which scores without one.
"""
