"""Reward workers: finished responses in, rewards out.

Reading order: `loop.py` (the heart), `pool.py` (killable children), `child.py`, `verifier.py`,
`verdict.py`, `math_answer.py`; for users' functions `functions.py`, `conventions.py` (whose
functions are called how), `known.py`, `signatures.py` and `results.py`, and `preflight.py`, which
looks at them before a run starts.
"""
