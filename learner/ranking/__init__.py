"""Session rankers (COCA, arXiv 2108.10510): sessions and their variants, losses, metrics.

Reading order: `sessions.py`, `losses.py`, `encoding.py`, `metrics.py`.
"""
