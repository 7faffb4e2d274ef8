"""Prompt sources for training and evaluation, and the scripts that make models."""
