"""Checks of groups, chunks, ends, scores, lines, closed windows and versions.

In: records in their order. Out: facts, and a finding for each promise that a record
breaks: every token is written down once and in its place, nothing comes after the end, version
spans cover exactly the tokens that were sampled, every window is closed once and begins where the
last one ended, a version is given out once and published before it samples; lines are scored once
and from front to back, they end at sampled tokens, what they earn on account is earned at their
ends and before an update had them or the outcome was known, and a window with scored lines has
some.
"""

from collections.abc import Iterable

import msgspec

from headrace.protocol.records import record_types as r
from headrace.protocol.token_spans import Span
from storage.audit.findings import Findings
from storage.audit.journal_facts import JournalFacts, RecordChecks, TrajectoryFacts, WindowFacts
from storage.audit.reading import JournalRecord

_INDEX_BITS = 16
"""Number of low bits of a window's id with its index; the others: trajectory id."""


class SequenceChecks(RecordChecks):
    """The facts of trajectories, their windows and versions."""

    def __init__(self, facts: JournalFacts, findings: Findings, *, has_value: bool) -> None:
        super().__init__(facts, findings)
        self._has_value = has_value

    def check_record(self, read: JournalRecord) -> None:
        """Note what one record says, and check it."""
        self._where = f"record {read.offset}"
        match read.record:
            case r.GroupIssued() as record:
                self._issue(record)
            case r.LeaseIssued() as record if of := self._trajectory(record.trajectory_id):
                self._lease(record, of)
            case r.ChunkArrived() as record if of := self._trajectory(record.trajectory_id):
                self._chunk(record, of)
            case r.TrajectoryEnded() as record if of := self._trajectory(record.trajectory_id):
                self._end(record, of, read.offset)
            case r.RewardArrived() as record if of := self._trajectory(record.trajectory_id):
                self._reward(record, of)
            case r.AuditArrived() as record if of := self._trajectory(record.trajectory_id):
                self._audit(record, of)
            case r.LinesScored() as record:
                self._score_lines(record)
            case r.WindowsReady() as record:
                for window_id, state in record.lines.items():
                    self._note_lines(window_id, state)
            case r.WindowsClosed() as record:
                for window in record.windows:
                    self._close(window)
            case r.VersionIssued() as record:
                if record.version <= self._facts.issued:
                    text = f"version {record.version} is given out after {self._facts.issued}"
                    self._say("versions", text)
                self._facts.issued = max(self._facts.issued, record.version)
            case r.VersionPublished() as record:
                self._publish(record)
            case r.VersionLoaded() as record:
                if record.version not in self._facts.published:
                    text = f"{record.generator} loaded version {record.version}, never published"
                    self._say("versions", text)

    def _trajectory(self, key: int) -> TrajectoryFacts | None:
        found = self._facts.trajectories.get(key)
        if found is None:
            self._say("tokens", f"trajectory {key} was never issued")
        return found

    def _issue(self, record: r.GroupIssued) -> None:
        if record.group_id in self._facts.groups:
            self._say("tokens", f"group {record.group_id} was issued before")
        self._facts.groups.add(record.group_id)
        self._facts.prompts.add(record.prompt_id)
        self._facts.images.update(run.digest for run in record.media)
        for key in record.trajectory_ids:
            if key in self._facts.trajectories:
                self._say("tokens", f"trajectory {key} was issued before")
                continue
            trajectory = TrajectoryFacts(key, record.group_id, record.purpose)
            self._facts.trajectories[key] = trajectory

    def _lease(self, record: r.LeaseIssued, trajectory: TrajectoryFacts) -> None:
        name = f"lease {record.lease_id} of trajectory {record.trajectory_id}"
        if record.lease_id <= self._facts.last_lease:
            self._say("tokens", f"{name} does not follow lease {self._facts.last_lease}")
        if record.start != trajectory.length:
            self._say("tokens", f"{name} starts at {record.start}, not {trajectory.length}")
        if trajectory.ended_at >= 0:
            self._say("tokens", f"{name} was given after its end")
        self._facts.last_lease = max(self._facts.last_lease, record.lease_id)
        self._facts.leases[record.trajectory_id] = record.lease_id, record.generator

    # -- tokens -----------------------------------------------------------------------------------

    def _chunk(self, chunk: r.ChunkArrived, trajectory: TrajectoryFacts) -> None:
        size = chunk.token_ids.size
        name = f"chunk {chunk.chunk_index} of trajectory {chunk.trajectory_id}"
        if trajectory.ended_at >= 0:
            self._say("tokens", f"{name} came after the end")
        if chunk.chunk_index != trajectory.next_chunk:
            self._say("tokens", f"{name} came where chunk {trajectory.next_chunk} was next")
        if chunk.start != trajectory.length:
            text = f"{name} starts at {chunk.start} where position {trajectory.length} was next"
            self._say("tokens", text)
        lease = self._facts.leases.get(chunk.trajectory_id)
        if chunk.streams is not None and (step := chunk.streams.step) is not None:
            paused = trajectory.finish == "stop" if step.turn else trajectory.next_chunk == 0
            if lease is not None or not paused or step.turn != trajectory.steps:
                self._say("tokens", f"{name}: no environment was asked for turn {step.turn}")
            trajectory.steps += 1
            if chunk.streams.rewards:
                trajectory.rewards = [*(trajectory.rewards or []), *chunk.streams.rewards]
        elif lease != (chunk.lease_id, chunk.generator):
            text = f"lease {chunk.lease_id} of {chunk.generator} was not in force"
            self._say("tokens", f"{name}: {text}")
        if chunk.finish is not None:
            self._facts.leases.pop(chunk.trajectory_id, None)
        end = chunk.start + size
        sampled = [(chunk.start, end)] if size else []
        if chunk.streams is not None and chunk.streams.pieces:
            pieces = chunk.streams.pieces
            if not _covers([(p.start, p.end) for p in pieces], chunk.start, end):
                self._say("tokens", f"{name}: its pieces do not cover its tokens")
            sampled = [(p.start, p.end) for p in pieces if p.source == "policy"]
        if _positions((s.start, s.end) for s in chunk.spans) != _positions(sampled):
            self._say("tokens", f"{name}: its version spans do not cover the sampled tokens")
        for version in {span.version for span in chunk.spans} - self._facts.published.keys():
            self._say("versions", f"{name} is of version {version}, never published")
        trajectory.status = "running" if trajectory.status == "issued" else trajectory.status
        trajectory.next_chunk += 1
        trajectory.finish = chunk.finish
        trajectory.received += sum(last - first for first, last in sampled)
        trajectory.length = max(trajectory.length, end)
        _extend(trajectory.spans, chunk.spans)

    def _end(self, record: r.TrajectoryEnded, trajectory: TrajectoryFacts, offset: int) -> None:
        name = f"trajectory {record.trajectory_id}"
        if trajectory.ended_at >= 0:
            self._say("tokens", f"{name} had ended before")
        if record.length != trajectory.length:
            text = f"{name} ends with {record.length} tokens and has {trajectory.length}"
            self._say("tokens", text)
        trajectory.status, trajectory.ended_at = record.status, offset
        self._facts.leases.pop(record.trajectory_id, None)

    def _reward(self, record: r.RewardArrived, trajectory: TrajectoryFacts) -> None:
        name = f"trajectory {record.trajectory_id}"
        if not trajectory.complete:
            self._say("tokens", f"{name} was scored and is {trajectory.status}")
        if trajectory.reward_status is not None:
            self._say("tokens", f"{name} was scored before")
        if any(not 0 <= each.position < max(1, trajectory.length) for each in record.rewards):
            self._say("tokens", f"{name} earned something outside its tokens")
        trajectory.reward, trajectory.reward_status = record.reward, record.status
        trajectory.reward_source, trajectory.reward_model = record.source, record.model
        if record.model is not None and self._facts.rankers:
            self._scored_by(record.model, trajectory.group_id, name)
        trajectory.rewards = [*(trajectory.rewards or []), *record.rewards]
        if record.status == "ok" and trajectory.purpose == "train" and self._has_value:
            trajectory.value = "waiting"

    def _scored_by(self, model: str, group_id: int, name: str) -> None:
        """A ranker that is trained along has scored an answer."""
        if model not in self._facts.rankers:
            self._say("versions", f"{name} was scored by ranker {model}, never published")
        other = self._facts.scored_by.setdefault(group_id, model)
        if other != model:
            self._say("versions", f"{name} was scored by ranker {model}, its sibling by {other}")

    def _audit(self, record: r.AuditArrived, trajectory: TrajectoryFacts) -> None:
        name = f"trajectory {record.trajectory_id}"
        if trajectory.reward_status != "ok" or trajectory.purpose != "train":
            self._say("tokens", f"{name} was audited and has no reward to audit")
        if trajectory.audit_status is not None:
            self._say("tokens", f"{name} was audited before")
        trajectory.audit_status, trajectory.audit_source = record.status, record.source
        trajectory.audit_reward = record.reward

    # -- lines ------------------------------------------------------------------------------------

    def _score_lines(self, record: r.LinesScored) -> None:
        trajectory = self._facts.trajectories.get(record.trajectory_id)
        name = f"lines of trajectory {record.trajectory_id}"
        if trajectory is None:
            self._say("lines", f"{name} were scored, and it was never issued")
            return
        begin, ends = trajectory.lines_through, [line.position for line in record.lines]
        if not begin < record.through <= trajectory.length:
            self._say(
                "lines",
                f"{name} are scored up to {record.through}, where {begin} to {trajectory.length} "
                "is next",
            )
        elif ends != sorted(set(ends)) or any(not begin <= at < record.through for at in ends):
            self._say(
                "lines", f"{name} end at {ends}, not in order from {begin} to {record.through}"
            )
        elif (trajectory.versions(0, trajectory.length)[ends] < 0).any():
            self._say("lines", f"{name} end at a token that was not sampled")
        if ends and record.status != "ok":
            self._say("lines", f"{name} have scores, and their status is {record.status}")
        for reward in record.rewards:
            if problem := _line_problem(trajectory, reward.position, ends):
                self._say("lines", f"{name} earn something at {reward.position}, {problem}")
        trajectory.lines_through = max(begin, record.through)
        trajectory.line_ends += ends
        if record.rewards:
            trajectory.rewards = [*(trajectory.rewards or []), *record.rewards]

    def _note_lines(self, window_id: int, state: r.LinesState) -> None:
        window = self._facts.windows.get(window_id)
        if window is None:
            self._say("lines", f"window {window_id} has lines and was never closed")
            return
        window.lines = state
        trajectory = self._facts.trajectories[window.trajectory_id]
        inside = any(window.start <= end < window.end for end in trajectory.line_ends)
        if state == "scored" and not inside:
            self._say("lines", f"{window.name} is said to have scored lines, and none ends in it")
        if state == "failed" and trajectory.lines_through <= window.start:
            self._say("lines", f"{window.name} is said to have failed, and nobody was asked")

    # -- windows ----------------------------------------------------------------------------------

    def _close(self, window: r.ClosedWindow) -> None:
        trajectory = self._trajectory(window.trajectory_id)
        if trajectory is None:
            return
        made = WindowFacts(**msgspec.structs.asdict(window))
        for problem in self._problems(trajectory, made):
            self._say("window", f"{made.name} {problem}")
        if window.window_id not in self._facts.windows:
            # Wrong borders have been told; what is counted stays among the tokens that are there.
            made.end = min(made.end, trajectory.length)
            made.start = max(0, min(made.start, made.end))
            self._facts.windows[window.window_id] = made
            trajectory.windows.append(made)

    def _problems(self, trajectory: TrajectoryFacts, window: WindowFacts) -> Iterable[str]:
        """The problems of a window as it is closed."""
        if window.window_id in self._facts.windows:
            yield "was closed before"
            return
        if window.window_id != window.trajectory_id << _INDEX_BITS | window.index:
            yield "has an id that is not made of its trajectory and index"
        if trajectory.purpose != "train":
            yield "is of an evaluation"
        last = trajectory.windows[-1] if trajectory.windows else None
        if window.index != len(trajectory.windows):
            yield f"is number {window.index} after {len(trajectory.windows)} others"
        start = last.end if last else 0
        if window.start != start or window.end <= window.start or window.end > trajectory.length:
            yield (
                f"is [{window.start}, {window.end}) where {start} is the next of "
                f"{trajectory.length} positions"
            )
            return
        versions = trajectory.versions(window.start, window.end)
        sampled = versions[versions >= 0]
        if sampled.size != window.tokens or not sampled.size:
            yield f"says {window.tokens} sampled tokens and has {sampled.size}"
        elif (int(sampled.min()), int(sampled.max())) != (window.min_version, window.max_version):
            yield f"says versions {window.min_version} to {window.max_version}"
        rest = trajectory.versions(window.end, trajectory.length)
        if window.final and not (trajectory.complete and (rest < 0).all()):
            yield "is called final and is not where the answer ends"

    # -- versions ---------------------------------------------------------------------------------

    def _publish(self, record: r.VersionPublished) -> None:
        facts, version = self._facts, record.version
        if version > facts.issued:
            self._say("versions", f"version {version} was published and never given out")
        if version in facts.published:
            self._say("versions", f"version {version} was published before")
        if (record.lineage, record.update) != (facts.lineage, facts.update):
            self._say(
                "versions",
                f"version {version} is said to be update {record.update} of lineage "
                f"{record.lineage}, and the last one is {facts.update} of {facts.lineage}",
            )
        facts.published[version] = record.lineage, record.update
        if record.ranker is not None:
            facts.rankers.add(record.ranker)


def _line_problem(trajectory: TrajectoryFacts, position: int, ends: list[int]) -> str | None:
    """Return why lines cannot earn something at a position; None where they can."""
    if position not in ends:
        return "where none of them ends"
    if trajectory.reward_status == "ok":
        return "after the outcome"
    states = (w.state for w in trajectory.windows if w.start <= position < w.end)
    return "which an update has had" if {"taken", "trained"} & set(states) else None


def _covers(runs: Iterable[tuple[int, int]], start: int, end: int) -> bool:
    """Return whether non-empty runs cover start to end without gap or overlap."""
    for first, last in runs:
        if first != start or last <= first:
            return False
        start = last
    return start == end


def _positions(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs in their order, joined where they touch: equal for equal positions."""
    joined: list[tuple[int, int]] = []
    for first, last in runs:
        if joined and joined[-1][1] == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def _extend(spans: list[Span], new: Iterable[Span]) -> None:
    """Append spans, joined to the last one where they go on with it."""
    for span in new:
        last = spans[-1] if spans else None
        if last is not None and (last.version, last.end) == (span.version, span.start):
            spans[-1] = Span(span.version, last.start, span.end)
        else:
            spans.append(span)
