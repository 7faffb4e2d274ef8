"""Pieces of a page that several views show."""
