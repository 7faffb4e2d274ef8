"""Facts of the journal about trajectories, windows and updates, for the checks.

In: nothing by itself; `sequences` and `updates` write here what each record says. Out: plain facts,
and for any trajectory arrays with an entry for each of its positions. Nothing here is shared with
the coordinator's account, so the two can be compared.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.protocol.records.record_types import BatchTaken, CheckpointWritten, MaskedRun
from headrace.protocol.token_spans import Reward, Span
from storage.audit.findings import Findings, Kind

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class WindowFacts:
    """A window: its borders as they were written down, and its state.

    Attributes:
        lineage, update, version: of the batch that has it or trained it; None: none has.
        trained: (lineage, update) of every commit in the surviving weights that trained it.
        lines: state of its lines when it got ready; None: none were scored.
    """

    window_id: int
    trajectory_id: int
    index: int
    start: int
    end: int
    tokens: int
    min_version: int
    max_version: int
    final: bool
    state: str = "closed"
    reason: str | None = None
    masked: list[MaskedRun] = field(default_factory=list)
    lineage: int | None = None
    update: int | None = None
    version: int | None = None
    trained: list[tuple[int, int]] = field(default_factory=list)
    lines: str | None = None

    @property
    def name(self) -> str:
        """The name by which findings call it."""
        return f"window {self.window_id} (trajectory {self.trajectory_id}, no. {self.index})"


@dataclass(slots=True)
class TrajectoryFacts:
    """A trajectory: its progress, who sampled its tokens, its rewards and its state.

    Attributes:
        ended_at: journal offset of its end; -1 while it runs. received: sampled tokens, added up
        chunk by chunk. steps: answers of its environment, the reset's included. rewards: what was
        earned where, as SQL has it; None: nothing yet. line_ends: where the lines end that have a
        score. lines_through: a source has answered for the lines before this position. value: where
        it is for the value model; None: it has no good reward. value_moved: whether a batch took
        it, or a record dropped it. value_trained: (lineage, update) as for windows.
    """

    trajectory_id: int
    group_id: int
    purpose: str
    status: str = "issued"
    ended_at: int = -1
    length: int = 0
    received: int = 0
    next_chunk: int = 0
    finish: str | None = None
    steps: int = 0
    spans: list[Span] = field(default_factory=list)
    reward: float | None = None
    reward_status: str | None = None
    reward_source: str | None = None
    reward_model: str | None = None
    audit_status: str | None = None
    audit_source: str | None = None
    audit_reward: float | None = None
    rewards: list[Reward] | None = None
    line_ends: list[int] = field(default_factory=list)
    lines_through: int = 0
    windows: list[WindowFacts] = field(default_factory=list)
    value: str | None = None
    value_moved: bool = False
    value_lineage: int | None = None
    value_update: int | None = None
    value_trained: list[tuple[int, int]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """True if it reached its end or the length limit."""
        return self.status in ("finished", "truncated")

    def versions(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """[end - start] which weights sampled each position; -1: none did."""
        found = np.full(max(0, end - start), -1, np.int64)
        for span in self.spans:
            if span.start < end and span.end > start:
                found[max(span.start - start, 0) : span.end - start] = span.version
        return found

    def in_loss(self, window: WindowFacts) -> Mask:
        """[window.end - window.start] True for sampled tokens that no mask keeps out of the
        loss."""
        kept = self.versions(window.start, window.end) >= 0
        for run in window.masked:
            kept[max(run.start - window.start, 0) : max(run.end - window.start, 0)] = False
        return kept


@dataclass(slots=True)
class UpdateFacts:
    """A batch: taken, returned, committed, skipped; `reported`: its commit has figures."""

    lineage: int
    update: int
    version: int
    num_windows: int
    num_values: int
    state: str = "taken"
    trained_tokens: int | None = None
    abandoned: bool = False
    reported: bool = False


@dataclass
class JournalFacts:
    """All facts of a journal.

    Attributes:
        issued: the highest version given out. update: the last one committed on the present
        lineage. committed: batches in the surviving weights that a rollback could still undo, by
        update. forgotten: no rollback reaches an update before this one. leases: (lease id,
        generator) in force, by trajectory. abandoned: tokens trained on lineages that were given
        up. lost: tokens that the journal does not have, by generator and reason. config: SHA-256 of
        the configuration that the run was last started with; None: unrecorded. rankers:
        versions of the ranker that is trained along. scored_by: the one that scored a group.
    """

    trajectories: dict[int, TrajectoryFacts] = field(default_factory=dict)
    windows: dict[int, WindowFacts] = field(default_factory=dict)
    groups: set[int] = field(default_factory=set)
    prompts: set[str] = field(default_factory=set)
    images: set[str] = field(default_factory=set)
    leases: dict[int, tuple[int, str]] = field(default_factory=dict)
    last_lease: int = -1
    issued: int = -1
    published: dict[int, tuple[int, int]] = field(default_factory=dict)
    rankers: set[str] = field(default_factory=set)
    scored_by: dict[int, str] = field(default_factory=dict)
    update: int = 0
    lineage: int = 0
    taken: BatchTaken | None = None
    committed: dict[int, BatchTaken] = field(default_factory=dict)
    forgotten: int = 0
    updates: dict[tuple[int, int], UpdateFacts] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointWritten] = field(default_factory=dict)
    evaluations: int = 0
    phase: str = "starting"
    config: str | None = None
    abandoned: int = 0
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)


class RecordChecks:
    """Base of checks that gather facts from the records of a journal, in their order."""

    def __init__(self, facts: JournalFacts, findings: Findings) -> None:
        self._facts, self._findings, self._where = facts, findings, ""

    def _say(self, kind: Kind, text: str) -> None:
        self._findings.add(kind, self._where, text)
