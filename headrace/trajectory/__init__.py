"""Sequences and their windows: the one account of where every token is.

`transitions` says what a record does to a window, `token_ledger` counts tokens by what their
windows are, `account` folds records into trajectories, windows and the ledger. The coordinator's
state, the SQL projection and every page rest on these; nothing else decides what a window is.
"""
