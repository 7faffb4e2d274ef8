"""What all records have in common."""

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all records. `at` is wall-clock time in seconds since the epoch."""

    at: float
