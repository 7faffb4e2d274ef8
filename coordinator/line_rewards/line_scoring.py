"""Scores of the lines of unfinished answers: requests, rewards, deadlines.

In: windows that closed, scores of lines, outcomes of answers. Out: trajectories whose lines need
scores, LinesScored records, the rewards of a settled answer. Promises: at most one request per
trajectory is in flight, and it covers all complete windows; a window waits for its lines no longer
than their source's deadline, counted from its close, and an outcome for the last of them; no reward
of a token changes once an update has had it.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from operator import attrgetter
from statistics import fmean
from typing import Literal

import msgspec

from coordinator.line_rewards.line_ends import LineEnds, LineTokens
from coordinator.line_rewards.process_rewards import num_scored, on_account, settled
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.control import Score
from headrace.protocol.records.record_types import LineScore, LinesScored, LinesState
from headrace.protocol.token_spans import Reward
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window, trajectory_of

REMEMBERED = 256
"""Number of answers whose line counts are averaged to predict those of the next."""
_SPARE = 1024


class LineScoring:
    """The coordinator's side of `reward.process`."""

    def __init__(
        self,
        config: RunConfig,
        account: Account,
        tokens: LineTokens,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        source, process = config.reward.line_source(), config.reward.process
        assert source is not None
        assert process.source is not None
        self.source = process.source
        self._account, self._tokens = account, tokens
        self._rates = process
        self._by_window = config.schedule.unit == "window"
        self._ends: dict[int, LineEnds] = {}
        self._asked: dict[int, list[int]] = {}
        """Positions by trajectory; empty until the request is sent."""
        self._wanted: deque[int] = deque()
        self._deadlines = Deadlines(source.timeout_s, clock)
        # Those of answers that the last coordinator settled, too.
        known = account.trajectories.values()
        settled_lines = (t.lines for t in known if t.lines and t.reward_status == "ok")
        self._numbers = deque(map(num_scored, settled_lines), maxlen=REMEMBERED)

    # -- waiting ----------------------------------------------------------------------------------

    def state_of(self, window: Window) -> LinesState | Literal["waiting"] | None:
        """Return the state of the lines that end in a closed window; None where none does.

        Lines without a request are requested from now on."""
        trajectory = self._account.trajectories[window.trajectory_id]
        if trajectory.complete:
            self.awaits(trajectory)
        ends = self._line_ends(trajectory)
        first, last = bisect_left(ends, window.start), bisect_left(ends, window.end)
        if first == last:
            return None
        if ends[last - 1] >= trajectory.lines_through:
            is_open = trajectory.reward_status != "ok"
            return "waiting" if is_open and self._waits(window.window_id, trajectory) else "late"
        known, at = trajectory.lines, attrgetter("position")
        scored = bisect_left(known, window.end, key=at) - bisect_left(known, window.start, key=at)
        return "scored" if scored == last - first else "failed"

    def awaits(self, trajectory: Trajectory) -> bool:
        """Return whether an ended answer has lines whose scores may still come in time."""
        ends = self._line_ends(trajectory)
        is_settled = trajectory.reward_status is not None
        if is_settled or not ends or ends[-1] < trajectory.lines_through:
            return False
        return self._waits(_answer(trajectory.trajectory_id), trajectory)

    def _waits(self, key: int, trajectory: Trajectory) -> bool:
        if trajectory.trajectory_id not in self._asked:
            self._asked[trajectory.trajectory_id] = []
            self._wanted.append(trajectory.trajectory_id)
        return self._deadlines.waits(key)

    def expired(self) -> list[Trajectory]:
        """Pop the trajectories of which a deadline has passed."""
        ids = dict.fromkeys(map(_whose, self._deadlines.expired()))
        found = (self._account.trajectories.get(i) for i in ids)
        return [trajectory for trajectory in found if trajectory is not None]

    # -- requests and scores ----------------------------------------------------------------------

    def wanted(self) -> list[int]:
        """Pop the trajectories whose lines need a score request."""
        wanted = list(self._wanted)
        self._wanted.clear()
        return wanted

    def question(self, trajectory: Trajectory) -> list[int]:
        """Return the ends of unscored lines in complete windows, which are now requested."""
        ends = self._line_ends(trajectory)
        border = trajectory.length if trajectory.ended else trajectory.open_start
        asked = ends[bisect_left(ends, trajectory.lines_through) : bisect_left(ends, border)]
        self._asked[trajectory.trajectory_id] = asked
        return asked

    def drop(self, trajectory_id: int) -> None:
        """Drop a request that is not sent after all."""
        self._asked.pop(trajectory_id, None)

    def checked(self, score: Score) -> Score:
        """Return a score, `invalid` where its lines are not those that were requested."""
        given, asked = len(score.lines), len(self._asked.get(score.trajectory_id, ()))
        if score.status != "ok" or given == asked:
            return score
        error = f"{given} scores for {asked} lines"
        return msgspec.structs.replace(score, status="invalid", lines=[], error=error)

    def answered(self, trajectory: Trajectory, score: Score, *, settles: bool) -> LinesScored:
        """Return the record of a checked score.

        `settles`: the outcome waits for lines alone, so that nothing is paid on account if these
        are the last ones."""
        asked = self._asked.pop(trajectory.trajectory_id)
        settles = settles and asked[-1] == self._line_ends(trajectory)[-1]
        lines = [LineScore(*pair) for pair in zip(asked, score.lines, strict=False)]
        return LinesScored(
            trajectory_id=trajectory.trajectory_id,
            source=self.source,
            status=score.status,
            through=asked[-1] + 1,
            lines=lines,
            rewards=[] if settles else self._on_account(trajectory, lines),
            seconds=score.seconds,
            error=score.error,
        )

    # -- rewards ----------------------------------------------------------------------------------

    def _on_account(self, trajectory: Trajectory, lines: list[LineScore]) -> list[Reward]:
        """Return early rewards of lines in windows that may be trained before the outcome."""
        if not self._by_window or trajectory.reward_status == "ok":
            return []
        early = set(_untrained(trajectory, lines, final=False))
        so_far = num_scored(trajectory.lines) + num_scored(lines)
        payable = [line for line in lines if line.position in early]
        expected = self._rates.lines or fmean(self._numbers or [0])
        return on_account(payable, self._rates, so_far=so_far, expected=expected)

    def settle(self, trajectory: Trajectory, *, passed: bool) -> list[Reward]:
        """Return an answer's further line rewards; scores after its outcome earn nothing."""
        if trajectory.lines:
            self._numbers.append(num_scored(trajectory.lines))
        self._deadlines.forget(_answer(trajectory.trajectory_id))
        return settled(
            trajectory.lines,
            trajectory.paid,
            self._rates,
            passed=passed,
            payable=set(_untrained(trajectory, trajectory.lines, final=True)),
            last=trajectory.last_sampled,
        )

    def _line_ends(self, trajectory: Trajectory) -> list[int]:
        found = self._ends.get(trajectory.trajectory_id)
        if found is None:
            known = self._account.trajectories
            if len(self._ends) > 2 * len(known) + _SPARE:
                self._ends = {i: ends for i, ends in self._ends.items() if i in known}
                self._deadlines.forget_except(lambda key: _whose(key) in known)
            found = self._ends[trajectory.trajectory_id] = LineEnds(self._tokens)
        return found.read(trajectory)


class Deadlines:
    """Equal deadlines of windows (by id) and answers (by keys below 0)."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._due: dict[int, float] = {}
        """Times by key, in the order in which they pass."""
        self._over: set[int] = set()

    def waits(self, key: int) -> bool:
        """Return whether time is left; the first call starts the clock."""
        if key in self._over:
            return False
        return self._clock() < self._due.setdefault(key, self._clock() + self._seconds)

    def expired(self) -> list[int]:
        """Pop the keys whose time has passed."""
        now = self._clock()
        found = [key for key, _ in takewhile(lambda item: item[1] <= now, self._due.items())]
        for key in found:
            del self._due[key]
        self._over.update(found)
        return found

    def forget(self, key: int) -> None:
        """Forget a deadline that nobody waits for any more."""
        self._due.pop(key, None)
        self._over.discard(key)

    def forget_except(self, alive: Callable[[int], bool]) -> None:
        """Forget all keys that are not `alive`."""
        for key in [key for key in (*self._due, *self._over) if not alive(key)]:
            self.forget(key)


def _untrained(trajectory: Trajectory, lines: Iterable[LineScore], *, final: bool) -> Iterable[int]:
    """Yield the positions of lines in windows that no update has had.

    Those in the final window are left out unless `final`."""
    for line in lines:
        number = bisect_left(trajectory.windows, line.position + 1, key=lambda w: w.end)
        if number < len(trajectory.windows):
            window = trajectory.windows[number]
            if window.state in ("closed", "ready") and (final or not window.final):
                yield line.position


def _answer(trajectory_id: int) -> int:
    """Return the key of a whole answer."""
    return -1 - trajectory_id


def _whose(key: int) -> int:
    """Return the trajectory that a key is about."""
    return -1 - key if key < 0 else trajectory_of(key)[0]
