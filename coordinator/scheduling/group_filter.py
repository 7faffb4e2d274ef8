"""Dynamic sampling: groups whose scores are all equal are not trained.

In: the account, after scores arrived. Out: records that drop the windows of groups whose scored
trajectories all have the same score, which teach nothing (DAPO section 3.2), or little where there
is a critic (the soft selection of T-PPO's recipe): then only as far as others fill the next batch,
so that the learner never waits for choice. Promises: only complete groups are judged, by the
verifier's scores before any shaping; dropped windows leave the staleness bound at once, so that
others are issued in their place; the value model does not train on what is dropped with them;
judging twice changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from coordinator.scheduling.window_lifecycle import drop_windows
from headrace.protocol.records.record_types import WindowsDropped
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import trajectory_of


@dataclass
class GroupFilter:
    """Filter of groups, and their numbers since the last update."""

    account: Account
    keep: int = 0
    """Minimum number of windows that stay ready when groups are dropped."""
    admitted: int = 0
    filtered: int = 0
    in_a_row: int = 0
    """Number of groups with equal scores since the last one without."""
    _equal: dict[int, None] = field(default_factory=dict)
    """Groups with equal scores that have not been dropped, the oldest first."""

    def judge(self, scored: list[Trajectory], *, warming: bool) -> Iterator[WindowsDropped]:
        """Judge the groups that these complete; yield records that drop groups.

        `warming`: the value model trains alone, on all answers."""
        seen = {t.group_id for t in scored if t.purpose == "train"}
        for group_id in sorted(seen):
            members = self.account.members(group_id)
            if not all(m.ended and (m.reward_status or not m.complete) for m in members):
                continue
            if is_mixed(members):
                self.admitted += 1
                self.in_a_row = 0
            elif group_id not in self._equal:
                self.in_a_row += 1
                self._equal[group_id] = None
        yield from self._surplus(warming=warming)

    def _surplus(self, *, warming: bool) -> Iterator[WindowsDropped]:
        """Yield records that drop groups with equal scores; each is applied before the next.

        Batches that came back are trained again as they were."""
        while self._equal and not (self.keep and self.account.again):
            group_id = next(iter(self._equal))
            there = group_id in self.account.groups  # or trained, and forgotten
            members = self.account.members(group_id) if there else []
            ready = sum(w.state == "ready" for member in members for w in member.windows)
            if self.keep and 0 < ready > len(self.account.ready) - self.keep:
                return
            del self._equal[group_id]
            self.filtered += bool(ready)
            for drop in drop_windows(members, "filtered"):
                of = {trajectory_of(window_id)[0] for window_id in drop.window_ids}
                waiting = [m.trajectory_id for m in members if m.value == "waiting"]
                values = [] if warming else [key for key in waiting if key in of]
                yield msgspec.structs.replace(drop, value_trajectories=values)

    def unjudged(self) -> list[Trajectory]:
        """Return a trajectory of each group that a replay has to judge again."""
        trajectories = self.account.trajectories
        groups = {trajectories[w.trajectory_id].group_id for w in self.account.ready.values()}
        return [self.account.members(group_id)[0] for group_id in groups]

    def pop_metrics(self) -> dict[str, float]:
        """Return metrics since the last update, and reset them."""
        judged = self.admitted + self.filtered
        metrics = {"schedule/filtered_groups": float(self.filtered)}
        if judged:
            metrics["schedule/admitted_share"] = self.admitted / judged
        self.admitted = self.filtered = 0
        return metrics


def is_mixed(members: list[Trajectory]) -> bool:
    """Return whether the scored members differ; fewer than two scores do not."""
    return len({m.reward for m in members if m.reward_status == "ok"}) > 1
