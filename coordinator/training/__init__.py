"""Batches to the learner, its updates, and metrics about them."""
