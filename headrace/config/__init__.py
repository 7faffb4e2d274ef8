"""Configuration: one strict model per section, loaded from TOML with dotted overrides.

Start at `run.py` (the root and the checks across sections) and `load.py` (files to `RunConfig`).
"""
