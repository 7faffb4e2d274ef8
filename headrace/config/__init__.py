"""Configuration: one strict model per section, from TOML with dotted overrides.

Start at `sections/run.py` (the root) and `loading/recipe.py` (files to `RunConfig`); `validation`
and `preflight` have the checks across sections.
"""
