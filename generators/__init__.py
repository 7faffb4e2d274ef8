"""Prompts in, trajectory chunks out."""
