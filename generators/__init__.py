"""Generators: prompts in, trajectory chunks out.

`engine.py` (the interface of engines) and its implementations in `engines/`; `rollout/`
(`chunking.py`: tokens to chunks, `loop.py`: the event loop); `run.py` (the process).
"""
