"""Session rankers (COCA, arXiv 2108.10510): session variants, losses, metrics.

Reading order: `sessions.py`, `losses.py`, `encoding.py`, `metrics.py`.
"""
