"""Ends of an answer's lines, and their scores."""
