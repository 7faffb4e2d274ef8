"""When tokens are generated and when they are trained: the three modes of the schedule."""

from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class ScheduleConfig(StrictModel):
    """Mode, window, batch and staleness."""

    mode: Literal["synchronous", "windowed", "streaming"] = "streaming"
    """synchronous: generate all, train, publish, repeat. windowed: the same with at most `window`
    new tokens a trajectory and update. streaming: generators never wait for the learner, except
    for the staleness bound."""

    window: int | None = Field(default=None, ge=1)
    """Most tokens of a trajectory trained in one update. None: max_response_length. `synchronous`
    generates and trains whole responses, whatever stands here."""

    across_turns: bool = True
    """Whether a window goes on over the end of a turn, where an environment answers. false: it ends
    with the turn, so that short turns train while their episodes go on."""

    unit: Literal["window", "trajectory", "group"] = "window"
    """What the policy half of a batch is made of."""

    batch_windows: int = Field(default=64, ge=1)
    """Units (windows, trajectories, or the trajectories of groups) in a batch; in `synchronous`
    and `windowed` also the number of slots."""

    num_generations: int = Field(default=1, ge=1)
    """Trajectories of one prompt (the group)."""

    value_batch_tokens: int | None = Field(default=None, ge=1)
    """Response tokens of finished trajectories that make a value batch. An update takes as many
    whole budgets as are there, to the end of the response that fills the last one; what is less
    than a budget waits for a later update (and is taken where a stream's warm-up could get no more
    for the staleness bound). None: every finished trajectory at the next update."""

    max_staleness: int = Field(default=2, ge=0)
    """Most updates between the sampling of a window's tokens and its training."""

    max_in_play: int | None = Field(default=None, ge=1)
    """Most windows being generated, waiting, ready or with the learner in streaming mode, where
    that is less than (max_staleness + 1) * batch_windows: tokens are young on average, and the
    first ones of a long window may still be as old as max_staleness says. None: no other bound."""

    stale: Literal["mask", "wait"] = "mask"
    """What happens to tokens over the bound: they are masked and counted as dropped, or the learner
    waits for the unit before it moves on."""

    warm_start: Literal["stream", "full"] = "stream"
    """stream: the first batches hold what finishes first (short answers). full: the first batch
    waits until every trajectory issued at the start has a complete window."""

    @property
    def bound(self) -> int:
        """Most windows in play in streaming mode."""
        by_staleness = (self.max_staleness + 1) * self.batch_windows
        return min(by_staleness, self.max_in_play or by_staleness)
