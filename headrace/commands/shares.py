"""Which learner rank trained what of an update: by what the ranks wrote down, and by the rules.

In: a run's folder, the shares of a batch that was compiled again. Out: numbers of ranks to compare.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.applied import AppliedUpdate, read_applied
from headrace.commands.differences import Row

if TYPE_CHECKING:
    from headrace.protocol.batches import Shard

Written = Mapping[int, AppliedUpdate]
"""What each rank wrote down of a batch."""


def written_shares(run_dir: Path, update: int) -> dict[int, dict[int, AppliedUpdate]]:
    """What ranks wrote down of an update, by batch and rank. Where a rank wrote twice of a batch,
    because it died over it, the last line counts."""
    found: dict[int, dict[int, AppliedUpdate]] = {}
    for name, line in read_applied(run_dir):
        if line.update == update:
            found.setdefault(line.batch_id, {})[int(name.removeprefix("rank-"))] = line
    return found


def rank_rows(written: Written, shares: Sequence[Sequence["Shard"]]) -> Iterator[Row]:
    """The rank of each window that was trained and of each value trajectory."""
    stored: dict[tuple[str, int], int] = {}
    for rank, line in written.items():
        stored |= {("window", key): rank for key in line.windows}
        stored |= {("value trajectory", key): rank for key in line.values}
    made: dict[tuple[str, int], int] = {}
    for rank, share in enumerate(shares):
        for part in share:
            made |= {("window", window.window_id): rank for window in part.windows}
            made |= {("value trajectory", value.trajectory_id): rank for value in part.values}
    for kind, key in sorted(stored.keys() | made.keys()):
        both = (np.array([x.get((kind, key), np.nan)], np.float64) for x in (stored, made))
        yield Row(f"{kind} {key}", None, *both)
