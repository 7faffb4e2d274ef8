"""Lifecycle of windows: when they close, become ready or are dropped.

In: trajectories that have changed. Out: the records about their windows; the caller applies each
before it takes the next. Promises: the rules stand here and nowhere else, and readers of the
records need none of them; calling twice gives no record twice.

A window closes after `window` sampled tokens, or where its trajectory ends, or a turn of it where
windows do not go across turns. It is ready as soon as its training unit is scored: with `window`
only the answer's last one needs a reward, with `trajectory` each its own reward, with `group` those
of the whole group. Where only mixed groups train, none is ready before two scores of its group
differ. Where a source scores lines, a window that goes on waits for those that end in
it, until their deadline. A window that ends with a turn waits for the environment's answer. Windows
of a trajectory get ready in order.
"""

from collections.abc import Iterable, Iterator

from coordinator.line_rewards.line_scoring import LineScoring
from headrace.config.sections.run import RunConfig
from headrace.protocol.records import record_types as r
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window, window_id


class WindowLifecycle:
    """Rules of windows, for one run's window size and training unit."""

    def __init__(
        self, config: RunConfig, account: Account, lines: LineScoring | None = None
    ) -> None:
        self._size = config.window
        self._unit, self._across_turns = config.schedule.unit, config.schedule.across_turns
        self._mixed = config.algorithm.admit == "mixed_groups"
        self._account = account
        self._lines = lines

    def next_records(self, trajectories: Iterable[Trajectory]) -> Iterator[r.Record]:
        """Yield the records about windows of these trajectories that are due now."""
        known = {t.trajectory_id: t for t in trajectories if t.purpose == "train"}
        closed = [window for t in known.values() for window in self._closings(t)]
        if closed:
            yield r.WindowsClosed(windows=closed)
        recalled = [w.window_id for t in known.values() for w in _recalls(t)]
        if recalled:
            yield r.WindowsRecalled(window_ids=recalled)
        undecided: set[int] = set()
        if self._unit == "group" or self._mixed:
            for group_id in {t.group_id for t in known.values()}:
                members = self._account.members(group_id)
                if self._mixed and not is_mixed(members):
                    # Very many windows may wait in it, and none of them gets ready.
                    undecided.add(group_id)
                else:
                    known |= {t.trajectory_id: t for t in members}
        waiting = [(t, w) for t in known.values() for w in _closed(t)]
        lost = [w.window_id for t, w in waiting if self._is_lost(t, w)]
        if lost:
            yield r.WindowsDropped(window_ids=sorted(lost), reason="reward_failed")
        ready: dict[int, r.LinesState | None] = {}
        held: set[int] = set()
        for trajectory, window in waiting:
            if window.state == "closed" and trajectory.group_id not in undecided:
                state = self._lines.state_of(window) if self._lines else None
                waits = state == "waiting" or trajectory.trajectory_id in held
                waits |= _awaits_step(trajectory, window)
                if self._is_ready(trajectory, window, waits=waits):
                    # An outcome waits for lines itself: those it has not waited for came too late.
                    ready[window.window_id] = "late" if state == "waiting" else state
                else:
                    held.add(trajectory.trajectory_id)
        if ready:
            lines = {key: state for key, state in sorted(ready.items()) if state is not None}
            yield r.WindowsReady(window_ids=sorted(ready), lines=lines)

    def drop_for_warmup(self, trajectory_ids: Iterable[int]) -> Iterator[r.Record]:
        """Return records that drop the windows of a warm-up's trajectories.

        The value model has trained on their outcomes, so the policy is not trained on them."""
        known = self._account.trajectories
        return drop_windows([known[i] for i in trajectory_ids], "value_warmup")

    def discard(self, trajectory: Trajectory, reason: r.DropReason) -> Iterator[r.Record]:
        """Yield records that drop all tokens of a trajectory that no update has."""
        if trajectory.open_tokens:
            start, end = trajectory.open_start, trajectory.spans[-1].end
            rest = self._window(trajectory, len(trajectory.windows), start, end)
            yield r.WindowsClosed(windows=[rest])
        yield from drop_windows([trajectory], reason)

    # -- closing ----------------------------------------------------------------------------------

    def _closings(self, trajectory: Trajectory) -> Iterator[r.ClosedWindow]:
        """Yield the complete windows that follow the last closed one."""
        index, start, left = len(trajectory.windows), trajectory.open_start, trajectory.open_tokens
        while left > self._size or (left == self._size and not trajectory.ended):
            end = trajectory.position_after(start, self._size)
            yield self._window(trajectory, index, start, end)
            index, start, left = index + 1, end, left - self._size
        turn_ended = trajectory.paused and not self._across_turns
        if left and (trajectory.ended or turn_ended):
            # Tokens inserted behind the last sampled one are in no window, however they came in.
            end, final = trajectory.spans[-1].end, trajectory.complete
            yield self._window(trajectory, index, start, end, final=final)

    def _window(
        self, trajectory: Trajectory, index: int, start: int, end: int, *, final: bool = False
    ) -> r.ClosedWindow:
        spans = trajectory.spans_between(start, end)
        versions = [span.version for span in spans]
        return r.ClosedWindow(
            window_id=window_id(trajectory.trajectory_id, index),
            trajectory_id=trajectory.trajectory_id,
            index=index,
            start=start,
            end=end,
            tokens=sum(span.end - span.start for span in spans),
            min_version=min(versions),
            max_version=max(versions),
            final=final,
        )

    # -- ready or lost ----------------------------------------------------------------------------

    def _is_lost(self, trajectory: Trajectory, window: Window) -> bool:
        """Return whether the window will never get the rewards that it needs."""
        if trajectory.ended and not trajectory.complete:
            return True
        failed = trajectory.reward_status not in (None, "ok")
        return failed and (window.final or self._unit != "window")

    def _is_ready(self, trajectory: Trajectory, window: Window, *, waits: bool) -> bool:
        """Return whether the window has all its rewards; `waits`: lines may still come."""
        if self._unit == "window" and not window.final:
            return not waits
        if trajectory.reward_status != "ok":
            return False
        return self._unit != "group" or all(
            member.reward_status is not None or member.status == "failed"
            for member in self._account.members(trajectory.group_id)
        )


def is_mixed(members: list[Trajectory]) -> bool:
    """Return whether the scored members differ; fewer than two scores do not."""
    return len({m.reward for m in members if m.reward_status == "ok"}) > 1


def drop_windows(
    trajectories: Iterable[Trajectory], reason: r.DropReason
) -> Iterator[r.WindowsDropped]:
    """Yield a record that drops these trajectories' windows that no update has had."""
    windows = (window for trajectory in trajectories for window in trajectory.windows)
    ids = [window.window_id for window in windows if window.state in ("closed", "ready")]
    if ids:
        yield r.WindowsDropped(window_ids=ids, reason=reason)


def _closed(trajectory: Trajectory) -> list[Window]:
    """Return its closed windows that are not ready, in order, among the last ones."""
    found: list[Window] = []
    for window in reversed(trajectory.windows):
        if len(found) == trajectory.closed:
            break
        if window.state == "closed":
            found.append(window)
    return found[::-1]


def _awaits_step(trajectory: Trajectory, window: Window) -> bool:
    """Return whether a turn ends with the window, and has no answer yet."""
    at_end = bool(trajectory.spans) and window.end >= trajectory.spans[-1].end
    return trajectory.paused and not trajectory.ended and at_end


def _recalls(trajectory: Trajectory) -> Iterator[Window]:
    """Yield the last window, if the trajectory turned out to end with it.

    The end came only after the chunk that filled the window. A window that the learner has had is
    not changed any more."""
    if trajectory.complete and trajectory.windows and not trajectory.open_tokens:
        last = trajectory.windows[-1]
        if not last.final and last.state in ("closed", "ready"):
            yield last
