"""Engines that sample tokens, behind the contract of `generators.engine`."""
