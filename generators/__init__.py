"""Generators: prompts in, trajectory chunks out.

`engine.py` (what an engine promises) and its implementations in `engines/`; `rollout/`
(`chunking.py`: tokens to chunks, `loop.py`: the heart); `run.py` (the process).
"""
