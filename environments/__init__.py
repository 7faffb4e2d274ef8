"""Environments: what answers when a turn of the policy ends, and the workers that hold them."""
