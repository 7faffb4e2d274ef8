"""Training and evaluation of reward models."""
