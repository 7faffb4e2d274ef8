"""A window: a run of one trajectory's positions that one update trains.

Its life: closed (complete; its reward or its group is still missing), ready, taken by the learner,
then trained or dropped. A batch that comes back makes its windows ready again.
"""

from dataclasses import dataclass, field
from typing import Literal

from headrace.protocol.records.record_types import ClosedWindow, DropReason, LinesState, MaskedRun

WindowState = Literal["closed", "ready", "taken", "trained", "dropped"]
_INDEX_BITS = 16


def window_id(trajectory_id: int, index: int) -> int:
    """The id of a trajectory's window number `index`, unique in the run."""
    return (trajectory_id << _INDEX_BITS) | index


def trajectory_of(window_id: int) -> tuple[int, int]:
    """(trajectory_id, index): the inverse of `window_id`."""
    return window_id >> _INDEX_BITS, window_id & ((1 << _INDEX_BITS) - 1)


@dataclass(slots=True)
class Window:
    """A window and where it is in its life.

    Attributes:
        tokens: how many of the positions [start, end) were sampled. min_version, max_version: the
        weights that sampled them. final: the trajectory ends with it. order: when it became ready,
        counted over the run. update: the update that has it or trained it; -1 before. masked:
        sampled tokens that its update keeps out of the loss, and why. reason: why it was dropped.
        lines: what had become of its lines when it got ready; None where no source scores any.
    """

    trajectory_id: int
    index: int
    start: int
    end: int
    tokens: int
    min_version: int
    max_version: int
    final: bool = False
    state: WindowState = "closed"
    order: int = 0
    update: int = -1
    masked: list[MaskedRun] = field(default_factory=list)
    reason: DropReason | None = None
    lines: LinesState | None = None

    @classmethod
    def closed(cls, record: ClosedWindow) -> "Window":
        """A window at the beginning of its life."""
        return cls(
            record.trajectory_id, record.index, record.start, record.end, record.tokens,
            record.min_version, record.max_version, record.final,
        )  # fmt: skip

    @property
    def window_id(self) -> int:
        """Unique in the run."""
        return window_id(self.trajectory_id, self.index)

    def dropped(self) -> dict[DropReason, int]:
        """Its sampled tokens that the loss excludes, by reason."""
        if self.state == "dropped":
            assert self.reason is not None
            return {self.reason: self.tokens}
        counts: dict[DropReason, int] = {}
        for run in self.masked:
            counts[run.reason] = counts.get(run.reason, 0) + run.tokens
        return counts
