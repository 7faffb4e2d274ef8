"""What all tests share: in CI hypothesis draws the same cases for the same code every time, so that
a submission is judged by its change and not by luck; elsewhere it goes on looking for new ones.
Nowhere is a case judged by the clock. `pytest tests/fuzz --hypothesis-profile=long --timeout=0`
tries a million inputs.

What thousands of test modules bring in comes to stay: the garbage collector would go through it
again and again while they are imported, which makes a third of their time, and later on.

What differs from machine to machine and is not the tests' own is taken away at their beginning: a
SIGINT that a shell has ignored for what it starts in the background, and the size and the colours
of a terminal.
"""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

NO_CLOCK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("here", NO_CLOCK)
settings.register_profile("ci", NO_CLOCK, derandomize=True)
settings.register_profile("long", NO_CLOCK, max_examples=150_000)
settings.load_profile("ci" if os.environ.get("CI") else "here")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # Processes of tests would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)

THRESHOLDS = gc.get_threshold()
gc.set_threshold(0)  # A learner's module, once imported, enables it.


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The size of each file, by its inode, when it was last synced to the disk in this test."""
    real, found = os.fsync, dict[int, int]()

    def fsync(descriptor: int) -> None:
        real(descriptor)
        seen = os.fstat(descriptor)
        found[seen.st_ino] = seen.st_size

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def pytest_collection_finish() -> None:
    """All modules are imported."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


def pytest_unconfigure() -> None:
    """DuckDB prints what is not taken apart at the end."""
    gc.unfreeze()
