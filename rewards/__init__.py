"""Reward workers: finished responses in, rewards out.

Reading order: `loop.py` (the heart), `pool.py` (killable children), `child.py`, `verifier.py`,
`verdict.py`, `math_answer.py`; for users' functions `functions.py` and `signatures.py`, and
`preflight.py`, which looks at them before a run starts.
"""
