"""Judges: other language models that score responses, behind the protocol of OpenAI.

Reading order: `options.py`, `prompts.py` (questions), `readings.py` (of its answers), `modes.py`
(from a response to a score), `server.py` with `wire.py` and `address.py` (requests), `selftest.py`
(checks before a run).
"""
