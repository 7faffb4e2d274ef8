"""Scheduler of `synchronous` and `windowed`: generate a round, train it, publish.

Promises: a round has batch_windows windows, or one group if larger (fewer by less than a group if
carried trajectories leave no room), carried ones first, all sampled by one version; a batch's
contents and their order do not depend on the order of arrival. Each event costs constant time.
"""

from collections.abc import Iterable

from coordinator.dispatch.leases import LeaseTable
from coordinator.persistence.state import State
from coordinator.scheduling.base import Scheduler
from headrace.config.sections.run import RunConfig
from headrace.data.image_processor import sees_images
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window


class SynchronousScheduler(Scheduler):
    """One round of windows at a time."""

    lockstep = True

    def __init__(self, config: RunConfig, state: State, leases: LeaseTable) -> None:
        super().__init__(config, state, leases, by_arrival=False)
        self._round: set[int] = set()
        """Trajectories of the round that is being generated."""
        self._pending: set[int] = set()
        """Trajectories of the round that may not be through yet."""
        self._lacking = 0
        """Number of groups that the round still needs: not all could be issued at once."""

    def restart(self) -> None:
        """Find the round and the warm-up of the learner's update, which has changed."""
        super().restart()
        self._find_round()

    def resume(self) -> None:
        """Find the round under way, after a new coordinator took over."""
        self._find_round()

    def committed(self, explained_variance: float | None) -> None:
        """Note a committed update, which ends its round, unless its batch had come back."""
        if not self._under_way():
            self._end_round()
        super().committed(explained_variance)

    def _find_round(self) -> None:
        """Find the round that is under way in the account.

        It has unfinished trajectories without a window that waits to be trained, and finished ones
        whose windows are not ready. There is one if a window was begun or completed that no batch
        has had; otherwise trajectories at a border wait for the next round."""
        self._end_round()
        account = self._account
        again = {window.window_id for batch in account.again for window in batch.windows}
        through = {w.trajectory_id for key, w in account.ready.items() if key not in again}
        live = [trajectory for trajectory in account.active.values() if not trajectory.ended]
        if not (
            account.closed
            or account.ready.keys() - again
            or any(trajectory.open_tokens or not trajectory.windows for trajectory in live)
        ):
            return
        for key, trajectory in account.active.items():
            if trajectory.ended:
                self._round.add(key)
                self._pending.add(key)
            elif self.warming or key not in through:
                self._join_round(key)
        # Else all are issued at once. A round may begin with prompts without images.
        if self._config.environment is not None or sees_images(self._config.model.path):
            size = self._schedule.num_generations
            slots = self._warmup.prompts * size or self._schedule.batch_windows
            self._lacking = max(0, slots - len(self._round | through)) // size

    def _end_round(self) -> None:
        self._round, self._pending, self._lacking = set(), set(), 0

    def _join_round(self, trajectory_id: int) -> None:
        self._round.add(trajectory_id)
        self._pending.add(trajectory_id)
        self._leases.may_begin(trajectory_id)

    # -- generation -------------------------------------------------------------------------------

    def stops_at_border(self) -> bool:
        """Return whether requests end with their window: not in a warm-up."""
        return not self.warming

    def next_leases(self, free: int) -> tuple[list[Trajectory], int]:
        """Return a round's carried trajectories, then new groups; later the unleased rest."""
        if self.selector.again():
            return [], 0
        keys = self._rest(free)
        if not (self._round or self._lacking):
            keys, self._lacking = self._begin_round(free)
        return [self._account.trajectories[key] for key in keys], self._lacking

    def _rest(self, free: int) -> list[int]:
        """Return the round's trajectories without a lease.

        A trajectory at its border waits for the next weights, except in a warm-up."""
        due: list[int] = []
        others: list[int] = []
        queues = [self._leases.inside.pop]
        if self.warming:
            queues.append(self._leases.border.pop)
        for pop in queues:
            while self._round and len(due) < free and (key := pop()) is not None:
                (due if key in self._round else others).append(key)
        self._leases.put_back(others)
        return due

    def _begin_round(self, free: int) -> tuple[list[int], int]:
        if self._account.taken is not None:
            return [], 0
        slots, size = self._schedule.batch_windows, self._schedule.num_generations
        slots = self._warmup.prompts * size or slots
        if self._account.ready and not self.warming:
            if not self._refills():
                return [], 0
            # Groups that were filtered out are replaced under the same weights.
            slots = -(-(slots - len(self._account.ready)) // size) * size
        carried: list[int] = []
        for pop in (self._leases.inside.pop, self._leases.border.pop):
            while len(carried) < slots and (key := pop()) is not None:
                carried.append(key)
        for key in carried:
            self._join_round(key)
        self._leases.put_back(carried[free:])
        groups = (slots - len(carried)) // size
        return carried[:free], groups if carried else max(1, groups)

    def issued(self, trajectories: Iterable[Trajectory]) -> None:
        """Let a new group's trajectories join the round."""
        self._lacking = max(0, self._lacking - 1)
        for trajectory in trajectories:
            self._join_round(trajectory.trajectory_id)

    def goes_on(self, trajectory: Trajectory) -> bool:
        """Return True: in a round every lease is used up."""
        self._leases.may_begin(trajectory.trajectory_id)
        return True

    # -- batches ----------------------------------------------------------------------------------

    def _policy_half(self) -> list[Window]:
        """Return the round's windows, or those left over from a warm-up or a dead learner."""
        if self._under_way():
            return []
        windows: list[Window] = [] if self._refills() else self.selector.windows()
        if not windows:
            self._end_round()
        return windows

    def _warmup_half(self) -> list[Trajectory]:
        if self._under_way():
            return []
        trajectories = self.selector.warmup_values() if self._round else []
        if not trajectories:
            self._end_round()
        return trajectories

    def _under_way(self) -> bool:
        return self._lacking > 0 or (bool(self._round) and not self._round_over())

    def _refills(self) -> bool:
        """Return whether dynamic sampling lets the round go on until it has a batch."""
        admits_all = self._config.algorithm.admit == "all"
        return not admits_all and len(self._account.ready) < self._schedule.batch_windows

    def _round_over(self) -> bool:
        """Return whether every trajectory of the round is through, and scored if it ended."""
        while self._pending:
            key = next(iter(self._pending))
            if not self._is_through(key):
                return False
            self._pending.discard(key)
        return True

    def _is_through(self, key: int) -> bool:
        """Return whether a trajectory has its window, or in a warm-up its whole response."""
        trajectory = self._account.trajectories.get(key)
        if trajectory is None:
            return True
        under_way = not trajectory.ended if self.warming else key in self._leases.open
        leased = self._leases.of(key) is not None
        return not leased and not under_way and not trajectory.closed
