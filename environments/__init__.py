"""Environments, which answer the policy's turns, and the workers that hold them."""
