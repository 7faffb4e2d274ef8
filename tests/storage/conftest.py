"""Fixtures of the storage tests."""

from tests.storage.postgresql import _server, postgresql_url

__all__ = ["_server", "postgresql_url"]
