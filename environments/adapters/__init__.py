"""Adapters of other libraries' environments: functions of a recipe's options.

Each returns a factory of episodes of unchanged environments."""
