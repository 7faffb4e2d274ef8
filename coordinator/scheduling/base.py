"""Base of the schedulers: batches, the value model's share of them, its warm-up.

In: the state. Out: selections of windows and trajectories. Promises: a trajectory goes to the value
model with, or after, its last window, so that no window's advantages come from a critic that has
trained on its outcome; in a warm-up, where the policy trains nothing, at once.
`coordinator.scheduling.streaming` and `coordinator.scheduling.synchronous` choose the time.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from coordinator.dispatch.leases import LeaseTable
from coordinator.persistence.state import State
from headrace.config.sections.run import RunConfig
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window

EXPLAINED = 10
"""Number of updates whose explained variance is kept."""


@dataclass(frozen=True)
class BatchSelection:
    """Windows and trajectories of the next batch."""

    windows: list[Window]
    value_trajectories: list[Trajectory]


class Warmup:
    """Updates that train the value model alone, before the policy moves."""

    def __init__(self, config: RunConfig, state: State) -> None:
        self._value = config.algorithm.value
        self._state = state
        self.restart()

    def restart(self) -> None:
        """Begin at the state's position; a batch in flight is not yet counted."""
        value, first = self._value, self._state.first_policy_update
        done = self._state.committed
        # The warm-up may have ended early, by explained variance.
        over = first is not None and done >= first - 1
        self.on = value is not None and done < value.warmup_updates and not over

    @property
    def prompts(self) -> int:
        """Number of prompts whose answers the next update needs; 0: it takes ended ones."""
        value = self._value
        if not self.on or value is None or self._state.committed:
            return 0
        return value.warmup_prompts or 0


class BatchSelector:
    """Choice of waiting windows and trajectories for a batch."""

    def __init__(self, config: RunConfig, state: State, *, by_arrival: bool) -> None:
        self._schedule = config.schedule
        self._state, self._account = state, state.account
        self._by_arrival = by_arrival
        self._looked_at = (-1, -1)
        """Update and order of the ready windows whose age was checked last."""

    def too_stale(self) -> list[Window]:
        """Return ready windows whose tokens are all over the bound, with stale = mask.

        Each window is checked once per update, not at every event."""
        if self._schedule.stale != "mask":
            return []
        update, mark = self._state.update, self._looked_at[1]
        if update != self._looked_at[0]:
            mark = -1
        new: list[Window] = []
        for window in reversed(self._account.ready.values()):
            if window.order <= mark:
                break
            new.append(window)
        self._looked_at = (update, max([mark, *(window.order for window in new)]))
        bound, age = self._schedule.max_staleness, self._state.versions.age
        return [window for window in new if age(window.max_version, update) > bound]

    def again(self) -> BatchSelection | None:
        """Return the first batch that came back, as far as it can still be trained.

        The surviving lineage repeats the batches of the abandoned one, one by one."""
        account = self._account
        for batch in account.again:
            ids = [window.window_id for window in batch.windows]
            windows = [account.ready[key] for key in ids if key in account.ready]
            values = [account.values[k] for k in batch.value_trajectories if k in account.values]
            if windows or values:
                return BatchSelection(windows, values)
        return None

    def is_behind(self) -> bool:
        """Return whether tokens sampled now would be too old after a rollback's updates.

        Sampling pauses while the run replays these."""
        account = self._account
        if not account.again:
            return False
        left = sum(map(account.is_wanted, account.again))
        return 0 < left >= self._schedule.max_staleness

    def windows(self) -> list[Window]:
        """Return the oldest ready windows, up to a full batch."""

        def age(window: Window) -> tuple[int, int, int]:
            arrival = window.order if self._by_arrival else 0
            return window.min_version, arrival, window.window_id

        ready = sorted(self._account.ready.values(), key=age)
        schedule = self._schedule
        # A round samples a whole group at least.
        least = 0 if schedule.mode == "streaming" else schedule.num_generations
        size = max(schedule.batch_windows, least)
        chosen = self._whole_groups(ready, size) if schedule.unit == "group" else ready[:size]
        return sorted(chosen, key=lambda w: w.window_id)

    def _whole_groups(self, ready: list[Window], size: int) -> list[Window]:
        """Return whole groups, the oldest first, until the batch is full."""
        chosen: dict[int, list[Window]] = {}
        taken = 0
        for window in ready:
            group = self._account.trajectories[window.trajectory_id].group_id
            if group in chosen or taken < size:
                chosen.setdefault(group, []).append(window)
                taken += 1
        return [window for windows in chosen.values() for window in windows]

    def values(self, beside: list[Window]) -> list[Trajectory]:
        """Return scored trajectories for the value model beside these windows.

        They are the oldest, up to the last token budget that they fill."""
        going = {window.window_id for window in beside}
        queue = [t for t in self.waiting() if all(_is_past(w, going) for w in t.windows)]
        return self._whole_budgets(queue)

    def warmup_values(self) -> list[Trajectory]:
        """Return them where the policy trains nothing, and needs no advantages."""
        return self._whole_budgets(self.waiting())

    def warmup_set(self, prompts: int) -> list[Trajectory] | None:
        """Return all scored answers to the first prompts; None while one is missing."""
        account = self._account
        # In the order in which they were issued, without branches, which have no position.
        asked = (g for g in account.groups.values() if g.purpose == "train" and g.position >= 0)
        first = {group.group_id for group in islice(asked, prompts)}
        if len(first) < prompts or any(t.group_id in first for t in account.active.values()):
            return None
        return [t for t in self.waiting() if t.group_id in first]

    def waiting(self) -> list[Trajectory]:
        """Return all scored trajectories that no value batch has had, the oldest first."""
        return [trajectory for _, trajectory in sorted(self._account.values.items())]

    def _whole_budgets(self, queue: list[Trajectory]) -> list[Trajectory]:
        budget = self._schedule.value_batch_tokens
        if budget is None:
            return queue
        left = sum(trajectory.sampled for trajectory in queue) // budget * budget
        chosen: list[Trajectory] = []
        for trajectory in queue:
            if left <= 0:
                break
            chosen.append(trajectory)
            left -= trajectory.sampled
        return chosen


def _is_past(window: Window, going: set[int]) -> bool:
    """Return whether a window's advantages come before the critic learns its outcome."""
    return window.state in ("taken", "trained", "dropped") or window.window_id in going


class Scheduler(ABC):
    """Scheduler of generation and of training batches."""

    lockstep: ClassVar[bool]
    """True where nothing is generated while the learner trains."""

    def __init__(
        self, config: RunConfig, state: State, leases: LeaseTable, *, by_arrival: bool
    ) -> None:
        """`by_arrival`: windows of one version are trained in the order of their arrival."""
        self._config, self._schedule = config, config.schedule
        self._state, self._account, self._leases = state, state.account, leases
        self._warmup = Warmup(config, state)
        self.selector = BatchSelector(config, state, by_arrival=by_arrival)
        self.bound = self._schedule.bound
        """Maximum number of windows in play in a stream."""
        self.explained: deque[float] = deque(maxlen=EXPLAINED)
        """Explained variance in the last updates."""

    @property
    def warming(self) -> bool:
        """True while the value model is being warmed up: batches have no policy half."""
        return self._warmup.on

    def restart(self) -> None:
        """Begin the round and the warm-up at the learner's update, which has changed."""
        self._warmup.restart()

    @abstractmethod
    def resume(self) -> None:
        """Resume after a new coordinator took over, with the leases in force."""

    @abstractmethod
    def stops_at_border(self) -> bool:
        """Return whether a request ends with its window."""

    def in_play(self) -> int:
        """Return the number of windows in generation, waiting, ready or with the learner."""
        account = self._account
        # A warm-up consumes trajectories, not windows: those that wait for it fill the bound.
        ready = len(account.values) if self.warming else len(account.ready)
        batch = account.taken
        taken = len(batch.windows) or len(batch.value_trajectories) if batch else 0
        return len(self._leases.open) + account.closed + ready + taken

    @abstractmethod
    def next_leases(self, free: int) -> tuple[list[Trajectory], int]:
        """Return trajectories to lease at once, and a number of groups, for `free` slots."""

    @abstractmethod
    def issued(self, trajectories: Iterable[Trajectory]) -> None:
        """Count a window for each new trajectory from now on."""

    @abstractmethod
    def goes_on(self, trajectory: Trajectory) -> bool:
        """Return whether a generating trajectory at a border may begin the next window."""

    def next_batch(self) -> BatchSelection | None:
        """Return the next batch, or None when the learner has to wait."""
        if self._account.taken is not None:
            return None
        if again := self.selector.again():
            return again
        if self.warming:
            prompts = self._warmup.prompts
            found = self.selector.warmup_set(prompts) if prompts else None
            trajectories = found or self._warmup_half()
            return BatchSelection([], trajectories) if trajectories else None
        windows = self._policy_half()
        if not windows:
            return None
        return BatchSelection(windows, self.selector.values(windows))

    @abstractmethod
    def _policy_half(self) -> list[Window]:
        """Return the windows of the next batch; none: the learner has to wait."""

    @abstractmethod
    def _warmup_half(self) -> list[Trajectory]:
        """Return the trajectories of a warm-up's next batch; none: the learner waits."""

    def committed(self, explained_variance: float | None) -> None:
        """Note a committed update."""
        self._warmup.restart()
        if explained_variance is not None and math.isfinite(explained_variance):
            self.explained.append(explained_variance)
