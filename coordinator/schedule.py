"""Who may generate and what is trained next: three modes of one scheduler.

Comes in: the state, the free slots of the generators, whether the learner is free. Goes out:
which trajectories to lease, how many new groups, which windows and value trajectories make the
next batch. Promises: in `streaming`, windows in play (being generated, waiting, ready, or with
the learner) never exceed `ScheduleConfig.bound` except by windows that were already
under way when their trajectory was held; in lockstep modes a round has batch_windows windows
(fewer by less than a group where carried trajectories leave no room for one), carried trajectories
first, all sampled by one version; what a batch holds, and in which order, is not a matter of who
arrived first in lockstep modes, nor in a stream of staleness 0, which makes the same batches.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.state import State
from coordinator.trajectories import Trajectory, Window
from headrace.config.run import RunConfig


@dataclass(frozen=True)
class Selection:
    """What the next batch is made of."""

    windows: list[Window]
    value_trajectories: list[Trajectory]
    value_epochs: int


@dataclass
class Scheduler:
    """Decisions only: it changes nothing but its own round and `Trajectory.window_open`."""

    config: RunConfig
    state: State
    warming: bool = False
    """The value model is being warmed up: batches have no policy half."""
    warm_updates: int = 0
    round: set[int] = field(default_factory=set)
    """Lockstep: trajectories of the round that is being generated."""
    opening: set[int] | None = None
    """warm_start = full: trajectories of the first leases without a complete window."""

    def __post_init__(self) -> None:
        schedule = self.config.schedule
        self.lockstep = schedule.mode != "streaming"
        self._rounds = self.lockstep or schedule.max_staleness == 0
        self.bound = schedule.bound
        self.restart()
        if schedule.warm_start == "full" and self.state.update == 0 and not self.lockstep:
            self.opening = set()

    def restart(self) -> None:
        """The learner is at another update than it was: begin the round and the warm-up there."""
        value, first = self.config.algorithm.value, self.state.first_policy_update
        self.round = set()
        # The warm-up may have ended early, by explained variance.
        over = first is not None and self.state.update >= first - 1
        self.warming = value is not None and self.state.update < value.warmup_updates and not over
        self.warm_updates = min(self.state.update, value.warmup_updates) if value else 0

    # -- generation -------------------------------------------------------------------------------

    def stops_at_border(self) -> bool:
        """Whether a request ends with its window: where no next one begins before new weights. A
        warm-up has the same weights all along, and needs whole responses."""
        return self._rounds and not self.warming

    def in_play(self) -> int:
        """Windows being generated, waiting, ready or with the learner."""
        state = self.state
        open_windows = waiting = 0
        for trajectory in state.active.values():
            open_windows += trajectory.window_open
            waiting += sum(w.state == "waiting" for w in trajectory.windows)
        # A warm-up consumes trajectories, not windows: those that wait for it fill the bound.
        ready = len(state.value_queue) if self.warming else len(state.ready)
        batch = state.taken
        taken = len(batch.windows) or len(batch.value_trajectories) if batch else 0
        return open_windows + waiting + ready + taken

    def may_begin(self, in_play: int, windows: int = 1) -> bool:
        """Whether so many more windows may begin."""
        return self.lockstep or in_play + windows <= self.bound

    def next_leases(self, free: int) -> tuple[list[Trajectory], int]:
        """Trajectories to go on with, and how many new groups to issue, for `free` slots."""
        if self.lockstep:
            return self._round_leases(free)
        in_play = self.in_play()
        chosen: list[Trajectory] = []
        for trajectory in self._without_lease():
            if len(chosen) == free:
                return chosen, 0
            if not trajectory.window_open:
                if not self.may_begin(in_play):
                    continue
                trajectory.window_open = True
                in_play += 1
            chosen.append(trajectory)
        size = self.config.schedule.num_generations
        groups = 0
        while len(chosen) + groups * size < free and self.may_begin(in_play, size):
            groups += 1
            in_play += size
        return chosen, groups

    def _without_lease(self) -> list[Trajectory]:
        """Unfinished and idle: first those inside a window, then by age."""
        idle = [t for t in self.state.running() if t.lease_id is None]
        for trajectory in idle:
            trajectory.window_open |= trajectory.length > trajectory.open_start
        return sorted(idle, key=lambda t: (not t.window_open, t.trajectory_id))

    def _round_leases(self, free: int) -> tuple[list[Trajectory], int]:
        """The slots of a round: carried trajectories, then new groups; later the unleased rest."""
        idle = self._without_lease()
        if self.round:
            # Whoever is at its border waits for the next weights.
            due = [t for t in idle if t.trajectory_id in self.round]
            return [t for t in due if t.window_open or self.warming][:free], 0
        slots, size = self.config.schedule.batch_windows, self.config.schedule.num_generations
        if self.state.taken is not None:
            return [], 0
        if self.state.ready and not self.warming:
            if not self._refills():
                return [], 0
            # Groups that were filtered out are replaced under the same weights.
            slots = -(-(slots - len(self.state.ready)) // size) * size
        carried = idle[:slots]
        for trajectory in carried:
            trajectory.window_open = True
        self.round = {t.trajectory_id for t in carried}
        groups = (slots - len(carried)) // size
        return carried[:free], groups if carried else max(1, groups)

    def issued(self, trajectories: Iterable[Trajectory]) -> None:
        """New trajectories exist: they hold a window from now on."""
        for trajectory in trajectories:
            trajectory.window_open = True
            if self.lockstep:
                self.round.add(trajectory.trajectory_id)
            if self.opening is not None and self.state.update == 0:
                self.opening.add(trajectory.trajectory_id)

    def goes_on(self, trajectory: Trajectory) -> bool:
        """A streaming trajectory crossed a window border: may it begin the next window?"""
        if trajectory.window_open or not self.may_begin(self.in_play()):
            return trajectory.window_open
        trajectory.window_open = True
        return True

    # -- batches ----------------------------------------------------------------------------------

    def too_stale(self) -> list[Window]:
        """stale = mask: ready windows of which every token is over the bound already."""
        oldest = self.state.version - self.config.schedule.max_staleness
        if self.config.schedule.stale != "mask":
            return []
        return [w for w in self.state.ready.values() if w.max_version < oldest]

    def next_batch(self) -> Selection | None:
        """The next batch, or None when the learner has to wait."""
        if self.state.taken is not None:
            return None
        value = self.config.algorithm.value
        if self.warming:
            assert value is not None
            if self.lockstep and not self._round_over():
                return None
            values = self._warmup_half()
            if not values:
                self.round = set()
                return None
            return Selection([], values, value.warmup_epochs)
        windows = self._policy_half()
        if not windows:
            if self.lockstep and self._round_over():
                self.round = set()
            return None
        return Selection(windows, self._value_half(), self.config.learner.value.epochs)

    def _policy_half(self) -> list[Window]:
        if self.lockstep:
            # Windows left over from a warm-up or a dead learner need no new round.
            if self.round and not self._round_over():
                return []
            return [] if self._refills() else self._units()
        if self._opening_waits() or self._stale_unit_waits():
            return []
        few = len(self.state.ready) < self.config.schedule.batch_windows
        if few and not self._nothing_to_come():
            return []
        return self._units()

    def _units(self) -> list[Window]:
        """What a full batch takes of the ready windows: the oldest, a stream's by arrival."""

        def age(window: Window) -> tuple[int, int, int]:
            arrival = 0 if self._rounds else window.order
            return window.min_version, arrival, window.window_id

        ready = sorted(self.state.ready.values(), key=age)
        size = self.config.schedule.batch_windows
        whole = self.config.schedule.unit == "group"
        chosen = self._whole_groups(ready, size) if whole else ready[:size]
        return sorted(chosen, key=lambda w: w.window_id)

    def _refills(self) -> bool:
        """Lockstep with dynamic sampling: the round goes on until it has a batch."""
        admits_all = self.config.algorithm.admit == "all"
        return not admits_all and len(self.state.ready) < self.config.schedule.batch_windows

    def _nothing_to_come(self) -> bool:
        """Nothing is under way, and what waits fills the bound so far that nobody may begin
        (trajectories that could not be scored left holes): waiting would be for ever."""
        if any(_under_way(trajectory) for trajectory in self.state.active.values()):
            return False
        begins = 1 if self.state.active else self.config.schedule.num_generations
        return not self.may_begin(self.in_play(), begins)

    def _whole_groups(self, ready: list[Window], size: int) -> list[Window]:
        """Oldest groups first, whole ones only, until the batch is full."""
        chosen: dict[int, list[Window]] = {}
        for window in ready:
            group = self.state.trajectories[window.trajectory_id].group_id
            if group in chosen or sum(map(len, chosen.values())) < size:
                chosen.setdefault(group, []).append(window)
        return [window for windows in chosen.values() for window in windows]

    def _round_over(self) -> bool:
        """Every trajectory of the round is through, and scored if it ended."""
        members = (self.state.trajectories.get(i) for i in self.round)
        return bool(self.round) and all(t is None or self._is_through(t) for t in members)

    def _is_through(self, trajectory: Trajectory) -> bool:
        """It has done what its round wants of it: a window, in a warm-up the whole response."""
        under_way = not trajectory.ended if self.warming else trajectory.window_open
        return (
            trajectory.lease_id is None
            and not under_way
            and all(w.state != "waiting" for w in trajectory.windows)
        )

    def _opening_waits(self) -> bool:
        if self.opening is None:
            return False
        trajectories = self.state.trajectories
        if any(i in trajectories and not trajectories[i].windows for i in self.opening):
            return True
        self.opening = None
        return False

    def _stale_unit_waits(self) -> bool:
        """stale = wait: a window under way would be over the bound after one more update."""
        if self.config.schedule.stale != "wait":
            return False
        oldest = self.state.version - self.config.schedule.max_staleness
        for trajectory in self.state.active.values():
            if trajectory.window_open and trajectory.lease_id is not None:
                spans = trajectory.spans_between(trajectory.open_start, trajectory.length)
                if spans and min(span.version for span in spans) <= oldest:
                    return True
            # Complete, but its reward or the rest of its group is not there yet.
            if any(w.state == "waiting" and w.min_version <= oldest for w in trajectory.windows):
                return True
        return False

    def _warmup_half(self) -> list[Trajectory]:
        """Finished trajectories of a batch without windows: as many as a batch has windows (in a
        round, all of them) or whole token budgets; less where a stream could wait for ever."""
        schedule = self.config.schedule
        if self.lockstep or schedule.value_batch_tokens is not None:
            chosen = self._value_half()
        else:
            met = len(self.state.value_queue) >= schedule.batch_windows
            chosen = self._finished()[: schedule.batch_windows] if met else []
        return self._finished() if not chosen and self._nothing_to_come() else chosen

    def _value_half(self) -> list[Trajectory]:
        """Finished trajectories, the oldest first, up to the last token budget that they fill."""
        budget, queue = self.config.schedule.value_batch_tokens, self._finished()
        if budget is None:
            return queue
        left = sum(trajectory.length for trajectory in queue) // budget * budget
        chosen: list[Trajectory] = []
        for trajectory in queue:
            if left <= 0:
                break
            chosen.append(trajectory)
            left -= trajectory.length
        return chosen

    def _finished(self) -> list[Trajectory]:
        """Scored trajectories that no value batch has had."""
        return [trajectory for _, trajectory in sorted(self.state.value_queue.items())]

    def committed(self, explained_variance: float | None) -> None:
        """An update is in: the round is over, and the warm-up may be."""
        self.round = set()
        value = self.config.algorithm.value
        if not self.warming or value is None:
            return
        self.warm_updates += 1
        good = value.warmup_explained_variance
        if self.warm_updates >= value.warmup_updates or (
            good is not None and explained_variance is not None and explained_variance >= good
        ):
            self.warming = False


def _under_way(trajectory: Trajectory) -> bool:
    """It is inside a window, or waits for its score or its group; else it is held at a border."""
    inside = trajectory.window_open or trajectory.length > trajectory.open_start
    return inside or trajectory.lease_id is not None or trajectory.ended
