"""A policy and a critic that look their answers up: numbers made by hand, through the learner.

Every place of every sequence has a token id of its own, so that a table by token id says what the
policy thinks of each token and what the critic thinks of each state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from headrace.protocol.messages.batches import (
    BatchSequence,
    GroupScores,
    PolicyWindow,
    Shard,
    ValueTrajectory,
)
from headrace.protocol.token_spans import Reward, Span
from learner.models.forward import Pack, TokenScores


class TablePolicy(nn.Module):
    """log pi of each token."""

    def __init__(self, logprobs: Sequence[float]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(logprobs, dtype=torch.float64))

    def forward(self, pack: Pack, *, entropy_gradient: bool = False) -> TokenScores:
        return TokenScores(self.table[pack.targets], torch.zeros_like(self.table[pack.targets]))


class TableCritic(nn.Module):
    """V of the state after each token."""

    def __init__(self, values: Sequence[float]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def forward(self, pack: Pack) -> Tensor:
        return self.table[pack.token_ids[pack.reads]]


@dataclass
class Book:
    """Windows and finished responses with what is thought of them."""

    sequences: list[BatchSequence] = field(default_factory=list)
    windows: list[PolicyWindow] = field(default_factory=list)
    finished: list[ValueTrajectory] = field(default_factory=list)
    groups: list[GroupScores] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(
        self,
        values: Sequence[float],
        *,
        start: int = 0,
        reward: float | None = None,
        v_end: float = 0.0,
        ratios: Sequence[float] | None = None,
        logprobs: Sequence[float] | None = None,
        keep: Sequence[int] | None = None,
    ) -> None:
        """One trajectory and its window from `start` on, after a prompt of one token.

        Args:
            values: V(s_t) of all response tokens, those before `start` too. start: where the window
            begins. reward: of a finished response; None: the window is cut. v_end: V(s_l) after the
            last token. ratios: pi / pi_behaviour of the window's tokens (1). logprobs: log pi of
            all response tokens (log 1/2). keep: the window's loss mask (all).
        """
        length, base = len(values), len(self.values)
        logprobs = [float(np.log(0.5))] * length if logprobs is None else logprobs
        ratios = [1.0] * (length - start) if ratios is None else ratios
        self.values += [*values, v_end]
        self.logprobs += [0.0, *logprobs]
        ids = np.arange(base, base + length + 1, dtype=np.int32)
        trajectory = len(self.windows)
        earned = [] if reward is None else [Reward(reward, length - 1)]
        score = reward if reward is not None else 0.0
        self.sequences.append(
            BatchSequence(
                trajectory_id=trajectory,
                group_id=trajectory,
                token_ids=ids,
                opening=1,
                sampled=[(0, length)],
            )
        )
        self.windows.append(
            PolicyWindow(
                window_id=trajectory,
                trajectory_id=trajectory,
                sequence=trajectory,
                start=start,
                end=length,
                length=length,
                logprobs=(np.array(logprobs)[start:] - np.log(ratios)).astype(np.float32),
                loss_weights=np.array([1] * (length - start) if keep is None else keep, np.float32),
                spans=[Span(1, start, length)],
                rewards=earned,
                finished=reward is not None,
                correct=score > 0,
            )
        )
        if reward is not None:
            self.groups.append(
                GroupScores(
                    group_id=trajectory,
                    trajectory_ids=[trajectory],
                    scores=np.array([reward], np.float32),
                    lengths=np.array([length], np.int32),
                )
            )
            self.finished.append(
                ValueTrajectory(
                    trajectory_id=trajectory,
                    sequence=trajectory,
                    length=length,
                    rewards=earned,
                    logprobs=np.zeros(0, np.float32),
                )
            )

    @property
    def shard(self) -> Shard:
        """All of it."""
        return Shard(
            sequences=self.sequences,
            windows=self.windows,
            values=self.finished,
            groups=self.groups,
        )
