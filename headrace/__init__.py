"""Headrace: asynchronous actor-learner reinforcement learning of language models.

This package is the contract that every role shares: configuration, wire protocol, command line,
launcher and supervisor. Reading order: `config/run.py`, `protocol/messages.py`,
`protocol/records.py`, `launch.py`, `supervise.py`, `cli.py`.
"""

__version__ = "0.1.0"
