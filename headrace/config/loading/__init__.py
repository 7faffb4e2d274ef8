"""Recipes, overrides and model names to a configuration."""
