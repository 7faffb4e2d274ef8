"""Checks of what lines earned, and of what windows say about their lines.

Comes in: records in their order, and the facts that others gathered from them. Goes out: facts, and
a finding for each promise that a record breaks: lines are scored once and from front to back, they
end at sampled tokens, what they earn on account is earned at their ends and before an update had
them or the outcome was known, and a window whose lines are scored has lines.
"""

from headrace.protocol.records import LinesScored, LinesState, WindowsReady
from storage.audit.facts import Facts, TrajectoryFacts
from storage.audit.findings import Findings
from storage.audit.reading import Read


class Lines:
    """The facts of lines."""

    def __init__(self, facts: Facts, findings: Findings) -> None:
        self._facts = facts
        self._findings = findings
        self._where = ""

    def see(self, read: Read) -> None:
        """Note what one record says, and check it."""
        self._where = f"record {read.offset}"
        match read.record:
            case LinesScored() as record:
                self._score(record)
            case WindowsReady() as record:
                for window_id, state in record.lines.items():
                    self._note(window_id, state)

    def _say(self, text: str) -> None:
        self._findings.add("lines", self._where, text)

    def _score(self, record: LinesScored) -> None:
        trajectory = self._facts.trajectories.get(record.trajectory_id)
        name = f"lines of trajectory {record.trajectory_id}"
        if trajectory is None:
            self._say(f"{name} were scored, and it was never issued")
            return
        begin, ends = trajectory.lines_through, [line.position for line in record.lines]
        if not begin < record.through <= trajectory.length:
            self._say(
                f"{name} are scored up to {record.through}, where {begin} to {trajectory.length} "
                "is next"
            )
        elif ends != sorted(set(ends)) or any(not begin <= at < record.through for at in ends):
            self._say(f"{name} end at {ends}, not in order from {begin} to {record.through}")
        elif (trajectory.versions(0, trajectory.length)[ends] < 0).any():
            self._say(f"{name} end at a token that was not sampled")
        if ends and record.status != "ok":
            self._say(f"{name} have scores, and their status is {record.status}")
        for reward in record.rewards:
            if problem := _problem(trajectory, reward.position, ends):
                self._say(f"{name} earn something at {reward.position}, {problem}")
        trajectory.lines_through = max(begin, record.through)
        trajectory.line_ends += ends
        if record.rewards:
            trajectory.rewards = [*(trajectory.rewards or []), *record.rewards]

    def _note(self, window_id: int, state: LinesState) -> None:
        window = self._facts.windows.get(window_id)
        if window is None:
            self._say(f"window {window_id} has lines and was never closed")
            return
        window.lines = state
        trajectory = self._facts.trajectories[window.trajectory_id]
        inside = any(window.start <= end < window.end for end in trajectory.line_ends)
        if state == "scored" and not inside:
            self._say(f"{window.name} is said to have scored lines, and none ends in it")
        if state == "failed" and trajectory.lines_through <= window.start:
            self._say(f"{window.name} is said to have failed, and nobody was asked")


def _problem(trajectory: TrajectoryFacts, position: int, ends: list[int]) -> str | None:
    """Why lines cannot earn something at a position; None where they can."""
    if position not in ends:
        return "where none of them ends"
    if trajectory.reward_status == "ok":
        return "after the outcome"
    states = (w.state for w in trajectory.windows if w.start <= position < w.end)
    return "which an update has had" if {"taken", "trained"} & set(states) else None
