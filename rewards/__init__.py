"""Reward workers: finished responses in, rewards out.

Reading order: `loop.py` (the heart), `pool.py` (killable children), `child.py`, `verifier.py`,
`verdict.py`, `kinds/` (one file each), `math_answer.py` with what it reads answers by; for users'
functions `functions.py` and `signatures.py`, and `preflight.py`, which looks at them before a run
starts.
"""
