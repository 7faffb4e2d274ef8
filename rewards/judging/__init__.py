"""Judges: other language models that score responses, behind the protocol of OpenAI.

Reading order: `options.py`, `prompts.py` (questions), `readings.py` (of its answers), `server.py`
with `wire.py` (requests), `selftest.py` (checks before a run); `rewards/kinds/judge.py` goes from a
response to a score.
"""
