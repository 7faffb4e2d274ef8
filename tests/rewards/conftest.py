"""What the tests of rewards share."""

from collections.abc import Iterator

import pytest

from rewards import process


@pytest.fixture(scope="session", autouse=True)
def reaper() -> Iterator[None]:
    """It is there before any test counts the children of this process."""
    process._reaper()
    yield
    process._reaper().close()
    process._reaper.cache_clear()
