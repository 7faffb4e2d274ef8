"""Dynamic sampling: groups whose scores are all equal are not trained.

In: the account, after scores arrived. Out: records that drop the windows of groups whose scored
trajectories all have the same score, which teach nothing (DAPO section 3.2). Promises: only
complete groups are judged, by the verifier's scores before any shaping; dropped windows leave the
staleness bound at once, so that others are issued in their place; the value model does not train on
what is dropped with them; judging twice changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from coordinator.scheduling.window_lifecycle import drop_windows, is_mixed
from headrace.protocol.records.record_types import WindowsDropped
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory


@dataclass
class GroupFilter:
    """Filter of groups, and their numbers since the last update."""

    account: Account
    admitted: int = 0
    filtered: int = 0
    in_a_row: int = 0
    """Number of groups with equal scores since the last one without."""

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
                continue
            for drop in drop_windows(members, "filtered"):
                self.filtered += 1
                self.in_a_row += 1
                waiting = [m.trajectory_id for m in members if m.value == "waiting"]
                yield msgspec.structs.replace(drop, value_trajectories=[] if warming else waiting)

    def unjudged(self) -> list[Trajectory]:
        """Return a trajectory of each group that a replay has to judge again."""
        groups = {t.group_id for t in self.account.active.values() if t.closed}
        return [self.account.members(group_id)[0] for group_id in groups]

    def pop_metrics(self) -> dict[str, float]:
        """Return metrics since the last update, and reset them."""
        judged = self.admitted + self.filtered
        metrics = {"schedule/filtered_groups": float(self.filtered)}
        if judged:
            metrics["schedule/admitted_share"] = self.admitted / judged
        self.admitted = self.filtered = 0
        return metrics
