"""Adapters of unchanged environments of other libraries. Each is a function of a recipe's
options that returns a factory of episodes."""
