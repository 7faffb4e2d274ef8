"""Which groups are trained: dynamic sampling.

Comes in: the account, after scores arrived. Goes out: records that drop the windows of groups whose
scored trajectories all have the same score, which teach nothing (DAPO section 3.2). Promises: only
complete groups are judged, by the verifier's scores before any shaping; what is dropped leaves the
staleness bound at once, so that others are issued in its place; judging twice changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.protocol.records.record_types import WindowsDropped
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory


@dataclass
class GroupFilter:
    """Groups judged since the last update."""

    account: Account
    admitted: int = 0
    filtered: int = 0
    in_a_row: int = 0
    """Filtered since a group was last admitted."""

    def judge(self, scored: list[Trajectory]) -> Iterator[WindowsDropped]:
        """Records that drop the groups which these trajectories complete and are not mixed."""
        seen = {t.group_id for t in scored if t.purpose == "train"}
        for group_id in sorted(seen):
            members = self.account.members(group_id)
            if not all(m.ended and (m.reward_status or not m.complete) for m in members):
                continue
            if is_mixed(members):
                self.admitted += 1
                self.in_a_row = 0
            else:
                self.filtered += 1
                self.in_a_row += 1
                yield from _drops(members)

    def unjudged(self) -> list[Trajectory]:
        """One trajectory of each group with windows ready: what a replay has to judge again."""
        trajectories = self.account.trajectories
        groups = {trajectories[w.trajectory_id].group_id for w in self.account.ready.values()}
        return [self.account.members(group_id)[0] for group_id in groups]

    def pop_metrics(self) -> dict[str, float]:
        """Metrics since the last update."""
        judged = self.admitted + self.filtered
        metrics = {"schedule/filtered_groups": float(self.filtered)}
        if judged:
            metrics["schedule/admitted_share"] = self.admitted / judged
        self.admitted = self.filtered = 0
        return metrics


def is_mixed(members: list[Trajectory]) -> bool:
    """Whether the scored members differ; a group with fewer than two scores does not."""
    return len({m.reward for m in members if m.reward_status == "ok"}) > 1


def _drops(members: list[Trajectory]) -> Iterator[WindowsDropped]:
    windows = [w for member in members for w in member.windows if w.state in ("closed", "ready")]
    if windows:
        ids = [window.window_id for window in windows]
        yield WindowsDropped(window_ids=ids, reason="filtered")
