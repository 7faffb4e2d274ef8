"""What every kind of export has: a schema, and rows in batches."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from storage.exports.packed import Packed


class Part(NamedTuple):
    """Some rows. `done`: how many of the things in `Rows.total` they were made from."""

    done: int
    rows: Packed


class Rows(Protocol):
    """A kind's rows. The schema's fields say what they mean."""

    schema: pa.Schema

    def total(self) -> int:
        """How many things (trajectories, numbers, windows) have to be gone through."""

    def parts(self) -> Iterator[Part]:
        """Rows in batches of bounded size; a batch may have none."""
