"""Headrace: asynchronous actor-learner reinforcement learning of language models.

This package is the ground that every other one stands on, and imports none of them. Reading order:
`config/sections/run.py`, `protocol/token_spans.py`, `protocol/messages/control.py`,
`protocol/records/record_types.py`, `trajectory/transitions.py`. What users ask for, and what starts
processes, is the roof: `headrace_cli`.
"""

__version__ = "0.1.0"
