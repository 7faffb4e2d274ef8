"""Judges: other language models that score responses, behind the protocol of OpenAI.

Reading order: `options.py`, `prompts.py` (what a judge is asked), `readings.py` (what its answer
means), `modes.py` (from a response to a score), `server.py` with `wire.py`, `pacing.py` and
`address.py` (how it is asked), `selftest.py` (what is looked at before a run).
"""
