"""Schedule of generation and training, in three modes."""

from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class ScheduleConfig(StrictModel):
    """Mode, window, batch and staleness."""

    mode: Literal["synchronous", "windowed", "streaming"] = "streaming"
    """synchronous: generate all, train, publish, repeat. windowed: the same with at most `window`
    new tokens per trajectory. streaming: generators wait only for the staleness bound."""

    window: int | None = Field(default=None, ge=1)
    """Maximum number of sampled tokens of a window. None:
    max_response_length. `synchronous` trains whole responses."""

    across_turns: bool = True
    """Let a window go on over an environment's turns. false: it ends with the turn."""

    unit: Literal["window", "trajectory", "group"] = "window"
    """Unit of the policy half of a batch."""

    batch_windows: int = Field(default=64, ge=1)
    """Windows, or with another `unit` responses (not prompts), in a batch; slots in rounds."""

    num_generations: int = Field(default=1, ge=1)
    """Trajectories per prompt (the group)."""

    value_batch_tokens: int | None = Field(default=None, ge=1)
    """Response tokens of a value batch. An update takes all whole budgets that are there, to the
    end of the response that fills the last; the rest waits (except where a warm-up's staleness
    bound admits no more). None: all finished trajectories."""

    max_staleness: int = Field(default=2, ge=0)
    """Maximum number of updates between sampling and training of tokens."""

    max_in_play: int | None = Field(default=None, ge=1)
    """Maximum number of windows in play in streaming mode, below (max_staleness + 1) *
    batch_windows: tokens are younger on average. None: no other bound."""

    stale: Literal["mask", "wait"] = "mask"
    """Tokens over the bound: mask and count them as dropped, or wait for the unit before the next
    update."""

    warm_start: Literal["stream", "full"] = "stream"
    """stream: the first batches hold what ends first. full: the first batch waits until every first
    trajectory has a complete window."""

    @property
    def publishes_behind(self) -> bool:
        """True where a version of the weights is written while the next update trains."""
        return self.mode == "streaming" and self.max_staleness > 0

    @property
    def bound(self) -> int:
        """Maximum number of windows in play in streaming mode."""
        by_staleness = (self.max_staleness + 1) * self.batch_windows
        return min(by_staleness, self.max_in_play or by_staleness)
