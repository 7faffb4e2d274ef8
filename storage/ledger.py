"""The token ledger counted again, from the journal alone.

In: a run's journal. Out: the counts that the coordinator's own ledger must show. It shares no code
with the coordinator: positions are looked at one window at a time at the end, not moved between
accounts as records come. Tests compare the two.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.config.run import RunConfig
from headrace.protocol.records import (
    BatchReturned,
    BatchTaken,
    ChunkArrived,
    GroupIssued,
    LineageBegan,
    Record,
    RewardArrived,
    TrajectoryEnded,
    UpdateCommitted,
)
from headrace.run_folder import read_config
from storage.journal import read_journal
from storage.version1 import TokensDropped, WindowTrained

_ENDS = ("finished", "truncated")


@dataclass
class _Response:
    group_id: int
    length: int = 0
    status: str = "running"
    reward_status: str | None = None
    outcomes: dict[int, tuple[WindowTrained, bool]] = field(default_factory=dict)
    """By window start: what a committed update did with it; True: the update was skipped."""
    drops: list[TokensDropped] = field(default_factory=list)
    value: str = "waiting"


class _Recount:
    """Who did what to which trajectory, gathered record by record."""

    def __init__(self, config: RunConfig) -> None:
        self.window = config.window
        self.unit = config.schedule.unit
        self.has_value = config.algorithm.value is not None
        self.responses: dict[int, _Response] = {}
        self.groups: dict[int, list[int]] = {}
        self.evaluation = 0
        self.abandoned = 0
        self.taken: dict[int, BatchTaken] = {}
        self.committed: dict[int, BatchTaken] = {}

    def see(self, record: Record) -> None:
        match record:
            case GroupIssued(purpose="train"):
                self.groups[record.group_id] = record.trajectory_ids
                for trajectory_id in record.trajectory_ids:
                    self.responses[trajectory_id] = _Response(record.group_id)
            case ChunkArrived():
                response = self.responses.get(record.trajectory_id)
                if response is None:
                    self.evaluation += record.token_ids.size
                else:
                    response.length = max(response.length, record.start + record.token_ids.size)
            case TrajectoryEnded(trajectory_id=key) if key in self.responses:
                self.responses[key].status = record.status
            case RewardArrived(trajectory_id=key) if key in self.responses:
                self.responses[key].reward_status = record.status
            case TokensDropped(trajectory_id=key) if key in self.responses:
                self.responses[key].drops.append(record)
            case BatchTaken():
                self.taken[record.update] = record
            case BatchReturned():
                self.taken.pop(record.update, None)
            case UpdateCommitted():
                self._commit(record)
            case LineageBegan():
                self._roll_back(record)

    def _commit(self, record: UpdateCommitted) -> None:
        batch = self.taken.pop(record.update)
        for window in batch.windows:
            response = self.responses[window.trajectory_id]
            response.outcomes[window.start] = (window, bool(record.skipped))
        for trajectory_id in batch.value_trajectories:
            self.responses[trajectory_id].value = "dropped" if record.skipped else "trained"
        if not record.skipped:
            self.committed[record.update] = batch

    def _roll_back(self, record: LineageBegan) -> None:
        self.taken.clear()
        for number in [n for n in self.committed if n > record.update]:
            batch = self.committed.pop(number)
            for window in batch.windows:
                self.abandoned += window.trained
                self.responses[window.trajectory_id].outcomes.pop(window.start, None)
            for trajectory_id in batch.value_trajectories:
                self.responses[trajectory_id].value = "waiting"

    def total(self) -> dict[str, Any]:
        counts: Counter[str] = Counter()
        dropped: Counter[str] = Counter()
        for response in self.responses.values():
            counts["generated"] += response.length
            for start in range(0, response.length, self.window):
                end = min(start + self.window, response.length)
                account, reasons = self._account(response, start, end)
                dropped.update(reasons)
                counts[account] += end - start - sum(reasons.values())
            if self.has_value and response.reward_status == "ok":
                counts[f"value_{response.value}"] += response.length
        return {
            "generated": counts["generated"],
            "trained_policy": counts["trained_policy"],
            "ready": counts["ready"],
            "in_flight": counts["in_flight"],
            "dropped": {name: tokens for name, tokens in sorted(dropped.items()) if tokens},
            "trained_value": counts["value_trained"],
            "value_waiting": counts["value_waiting"],
            "value_dropped": counts["value_dropped"],
            "abandoned": self.abandoned,
            "evaluation": self.evaluation,
        }

    def _account(self, response: _Response, start: int, end: int) -> tuple[str, dict[str, int]]:
        """The account of the window's tokens, and how many of them were dropped by reason."""
        outcome = response.outcomes.get(start)
        if outcome is not None:
            window, was_skipped = outcome
            if was_skipped:
                return "trained_policy", {"non_finite": end - start}
            return "trained_policy", window.dropped
        reasons: dict[str, int] = defaultdict(int)
        for drop in response.drops:
            overlap = min(end, drop.end) - max(start, drop.start)
            if overlap > 0:
                reasons[drop.reason] += overlap
        if reasons:
            return "in_flight", reasons
        is_full = end - start == self.window
        return self._waiting(response, end, is_full, end - start)

    def _waiting(
        self, response: _Response, end: int, is_full: bool, tokens: int
    ) -> tuple[str, dict[str, int]]:
        """A window that nobody trained or dropped by a record of its own."""
        lost = {"reward_failed": tokens}
        has_ended = response.status in _ENDS
        is_broken = response.status not in ("running", *_ENDS)
        is_final = has_ended and end == response.length
        if is_broken and (not is_full or self.unit != "window"):
            return "in_flight", lost
        if response.reward_status not in (None, "ok") and (is_final or self.unit != "window"):
            return "in_flight", lost
        if not is_full and not is_final:
            return "in_flight", {}
        if self.unit == "window":
            is_ready = not is_final or response.reward_status == "ok"
        else:
            is_ready = response.reward_status == "ok"
        if self.unit == "group":
            members = [self.responses[key] for key in self.groups[response.group_id]]
            is_ready = is_ready and all(
                m.reward_status is not None or m.status == "failed" for m in members
            )
        return ("ready" if is_ready else "in_flight"), {}


def recount_ledger(run_dir: Path) -> dict[str, Any]:
    """Counts of response tokens by account: generated, trained_policy, ready, in_flight, dropped
    {reason: n}, trained_value, value_waiting, value_dropped, abandoned, evaluation."""
    config = read_config(run_dir)
    recount = _Recount(config)
    for batch in read_journal(run_dir / "journal"):
        for _, record in batch:
            recount.see(record)
    return recount.total()
