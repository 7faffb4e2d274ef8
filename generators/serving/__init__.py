"""Processes that serve an engine without a run, or a judge over HTTP."""
