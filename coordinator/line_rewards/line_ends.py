"""Ends of an answer's lines, by its tokens.

In: a vocabulary as texts, the sampled tokens of an answer. Out: positions. A line ends at the token
that contains its newline, for any number of newlines in that token; the text after the last of them
is a line too, once the answer has ended, and ends at its last token with a text (an end token has
none). Promise: the vocabulary is read once, so a chunk costs a look-up of its tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.protocol.token_spans import Int32
from headrace.trajectory.trajectories import Trajectory

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class LineTokens:
    """The tokens of a vocabulary that end a line.

    Attributes:
        ends: [V] bool, the token's text has a newline. silent: [V] bool, the token has no text.
    """

    ends: Flags
    silent: Flags

    @classmethod
    def of(cls, texts: Sequence[str], size: int) -> "LineTokens":
        """Build them for `size` ids whose first ones have these texts, special ones none."""
        ends, silent = np.zeros(size, np.bool_), np.ones(size, np.bool_)
        ends[: len(texts)] = ["\n" in text for text in texts]
        silent[: len(texts)] = [not text for text in texts]
        return cls(ends, silent)


@dataclass
class LineEnds:
    """Line ends of one trajectory, as far as it has been read."""

    tokens: LineTokens
    positions: list[int] = field(default_factory=list)
    _read: int = 0
    _ended: bool = False

    def read(self, trajectory: Trajectory) -> list[int]:
        """Return all line ends so far, in order."""
        if self._read < trajectory.length:
            for start, end in trajectory.sampled_between(self._read, trajectory.length):
                found = np.flatnonzero(self.tokens.ends[trajectory.tokens[start:end]])
                self.positions += (found + start).tolist()
            self._read = trajectory.length
        if trajectory.complete and not self._ended:
            self._ended = True
            self.positions += self._unfinished(trajectory)
        return self.positions

    def _unfinished(self, trajectory: Trajectory) -> Iterable[int]:
        """Return the end of the line that no newline ends, if there is one."""
        start = self.positions[-1] + 1 if self.positions else 0
        for first, last in reversed(trajectory.sampled_between(start, trajectory.length)):
            spoken = np.flatnonzero(~self.tokens.silent[trajectory.tokens[first:last]])
            if spoken.size:
                return [first + int(spoken[-1])]
        return []


def sampled_index(trajectory: Trajectory, positions: Sequence[int]) -> list[int]:
    """Return the indices of these positions among the sampled tokens, from 0."""
    if not trajectory.pieces:
        return list(positions)
    runs = trajectory.sampled_between(0, trajectory.length)
    at = np.concatenate([np.zeros(0, np.int64), *(np.arange(a, b) for a, b in runs)])
    return np.searchsorted(at, positions).tolist()


def pieces_up_to(tokens: Int32, ends: Sequence[int], start: int) -> list[Int32]:
    """Cut tokens into lines from `start` on; `ends`: indices of their last tokens."""
    starts = [start, *(end + 1 for end in ends[:-1])]
    return [tokens[first : last + 1] for first, last in zip(starts, ends, strict=True)]
