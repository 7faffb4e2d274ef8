"""Fixtures of the storage tests."""

from tests.storage.postgresql import _server, own_server, postgresql_url

__all__ = ["_server", "own_server", "postgresql_url"]
