"""Sockets, frames, keys, heartbeats: how messages travel."""
