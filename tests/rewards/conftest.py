"""What the tests of rewards share."""

import pytest

from rewards import process


@pytest.fixture(scope="session", autouse=True)
def reaper() -> None:
    """It is there before any test counts the children of this process."""
    process._reaper()
