"""Scheduler of `streaming`: generators wait at the staleness bound alone.

They never wait for the learner itself. Promises: windows in play (being generated, waiting, ready,
or with the learner) never exceed `ScheduleConfig.bound` except by windows that were already under
way when their trajectory was held, and by those of a group whose scores the learner waits for; a
stream of staleness 0 makes the same batches in any order of arrival. Each event costs constant
time, but for the prompts that a warm-up waits for; only a batch that is about to leave looks at all
windows.
"""

from collections.abc import Iterable

from coordinator.dispatch.leases import LeaseTable
from coordinator.persistence.state import State
from coordinator.scheduling.base import Scheduler
from headrace.config.sections.run import RunConfig
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window


class StreamingScheduler(Scheduler):
    """Leases under a bound, batches as soon as there are enough windows."""

    lockstep = False

    def __init__(self, config: RunConfig, state: State, leases: LeaseTable) -> None:
        super().__init__(config, state, leases, by_arrival=config.schedule.max_staleness > 0)
        by_group = any(source.unit == "group" for source in config.reward.each().values())
        self._groups_wait = config.algorithm.admit != "all" or by_group
        """True where complete windows may wait for other members of their group."""
        full = self._schedule.warm_start == "full" and state.update == 0
        self._opening: set[int] | None = set() if full else None
        """Trajectories of first leases without a complete window, with warm_start = full."""

    def resume(self) -> None:
        """Wait for first windows again; trajectories with a lease are in play already."""
        if self._opening is not None:
            self._opening.update(self._account.active)

    # -- generation -------------------------------------------------------------------------------

    def stops_at_border(self) -> bool:
        """Return whether requests end with their windows: the next need new weights.

        A warm-up has the same weights all along, and needs whole responses."""
        return self._schedule.max_staleness == 0 and not self.warming

    def _may_begin(self, in_play: int, windows: int = 1) -> bool:
        # A warm-up's set of prompts comes on top: the policy does not move meanwhile.
        first = self._warmup.prompts * self._schedule.num_generations
        return in_play + windows <= self.bound + first

    def next_leases(self, free: int) -> tuple[list[Trajectory], int]:
        """Return trajectories inside windows, then at borders in the bound, then groups."""
        chosen: list[int] = []
        while len(chosen) < free and (key := self._leases.inside.pop()) is not None:
            chosen.append(key)
        in_play = self.in_play()
        while len(chosen) < free and (key := self._leases.border.pop()) is not None:
            trajectory = self._account.trajectories[key]
            if not self._may_go_on(trajectory, in_play):
                self._leases.put_back([key])
                break
            self._leases.may_begin(key)
            chosen.append(key)
            in_play += 1
        size, groups = self._schedule.num_generations, 0
        while len(chosen) + groups * size < free and self._may_begin(in_play, size):
            groups += 1
            in_play += size
        return [self._account.trajectories[key] for key in chosen], groups

    def _may_go_on(self, trajectory: Trajectory, in_play: int) -> bool:
        """Return whether a trajectory at a border may begin the next window.

        While the learner waits, the oldest group may go on beyond the bound, which windows that
        wait for its scores may fill."""
        if self._may_begin(in_play):
            return True
        account = self._account
        if not self._groups_wait or account.taken or not account.active:
            return False
        return trajectory.group_id == next(iter(account.active.values())).group_id

    def issued(self, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            self._leases.may_begin(trajectory.trajectory_id)
            if self._opening is not None and self._state.update == 0:
                self._opening.add(trajectory.trajectory_id)

    def goes_on(self, trajectory: Trajectory) -> bool:
        if trajectory.trajectory_id in self._leases.open:
            return True
        if not self._may_go_on(trajectory, self.in_play()) or self.selector.is_behind():
            return False
        self._leases.may_begin(trajectory.trajectory_id)
        return True

    # -- batches ----------------------------------------------------------------------------------

    def _policy_half(self) -> list[Window]:
        few = len(self._account.ready) < self._schedule.batch_windows
        if few and not self._nothing_to_come():
            return []
        if self._opening_waits() or self._stale_unit_waits():
            return []
        return self.selector.windows()

    def _warmup_half(self) -> list[Trajectory]:
        """Return trajectories of a full batch; fewer where the stream would wait for ever."""
        chosen, size = list[Trajectory](), self._schedule.batch_windows
        if self._schedule.value_batch_tokens is not None and not self._warmup.prompts:
            chosen = self.selector.warmup_values()
        elif len(self._account.values) >= size and not self._warmup.prompts:
            chosen = self.selector.waiting()[:size]
        return self.selector.waiting() if not chosen and self._nothing_to_come() else chosen

    def _nothing_to_come(self) -> bool:
        """Return whether waiting would be for ever.

        Nothing is under way, and the bound lets nothing begin: unscored trajectories left holes."""
        active = len(self._account.active)
        if len(self._leases.border.waits) < active:
            return False
        begins = 1 if active else self._schedule.num_generations
        return not self._may_begin(self.in_play(), begins)

    def _opening_waits(self) -> bool:
        """Return whether a first trajectory lacks a whole window, with warm_start = full."""
        if self._opening is None:
            return False
        while self._opening:
            key = next(iter(self._opening))
            trajectory = self._account.trajectories.get(key)
            if trajectory is not None and not (trajectory.windows or trajectory.ended):
                return True
            self._opening.discard(key)
        self._opening = None
        return False

    def _stale_unit_waits(self) -> bool:
        """Return whether a window would be too old after the update, with stale = wait."""
        waits = self._schedule.stale == "wait"
        return waits and any(map(self._would_be_stale, self._account.active.values()))

    def _would_be_stale(self, trajectory: Trajectory) -> bool:
        """Return whether an unfinished window, or one that waits, would be too old."""
        bound, update = self._schedule.max_staleness, self._state.update
        age = self._state.versions.age
        spans = trajectory.spans_between(trajectory.open_start, trajectory.length)
        if spans and age(spans[0].version, update) >= bound:
            return True
        return any(
            window.state == "closed" and age(window.min_version, update) >= bound
            for window in trajectory.windows
        )
