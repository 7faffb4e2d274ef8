"""Reward workers: finished responses in, rewards out.

Reading order: `loop.py` (the heart), `pool.py`, `crew.py` and `process.py` (killable children, for
each source its own), `child.py`, `verifier.py`, `verdict.py`, `kinds/` (one file each),
`math_answer.py` with what it reads answers by; for functions of users `functions.py`,
`conventions.py` (whose functions are called how), `known.py`, `signatures.py` and `results.py`;
`preflight.py`, which looks at them before a run starts, and `trial.py`, which scores without a run.
"""
