"""What the tests of rewards share."""

import pytest

from rewards.worker import child_process


@pytest.fixture(scope="session", autouse=True)
def reaper() -> None:
    """It is there before any test counts the children of this process."""
    child_process._reaper()
