"""Reward workers: finished responses in, rewards out.

Reading order: `loop.py` (the heart), `pool.py` (killable children), `child.py`, `verifier.py`,
`math_answer.py`.
"""
