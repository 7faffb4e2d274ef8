"""Peers, what each may send, and what is refused."""
