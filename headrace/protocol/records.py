"""What the coordinator writes down, in the order in which it happened: the journal is a sequence of
these records, SQL is their projection, and replaying them rebuilds the coordinator.

Only the coordinator makes records and only `storage` reads or writes them on disk. Token spans of a
trajectory are response positions [start, end). Every record is frozen, tagged with its class name.
"""

from typing import Literal

import msgspec

from headrace.protocol.messages import Float32, Int32, Purpose, Span, TokenDiagnostics

DropReason = Literal[
    "boundary_mask",
    "stale",
    "filtered",
    "overlong",
    "value_warmup",
    "reward_failed",
    "non_finite",
    "discarded_at_end",
]
TrajectoryStatus = Literal["running", "finished", "truncated", "aborted", "failed"]


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all records. `at` is wall-clock time in seconds since the epoch."""

    at: float


class GroupIssued(Record, frozen=True, kw_only=True, tag=True):
    """A prompt left the source: its group of trajectories exists from now on."""

    group_id: int
    prompt_id: str
    position: int
    purpose: Purpose
    prompt: str
    """Text of the prompt as the policy sees it."""
    answer: str
    info: str
    """JSON object."""
    prompt_ids: Int32
    trajectory_ids: list[int]
    seeds: list[int]


class LeaseIssued(Record, frozen=True, kw_only=True, tag=True):
    """A generator was told to go on with a trajectory from position `start`."""

    lease_id: int
    trajectory_id: int
    generator: str
    start: int
    version: int


class ChunkArrived(Record, frozen=True, kw_only=True, tag=True):
    """Tokens [start, start + n) of a trajectory are safe. `finish` as on the wire."""

    trajectory_id: int
    lease_id: int
    chunk_index: int
    generator: str
    start: int
    token_ids: Int32
    logprobs: Float32
    spans: list[Span]
    finish: str | None = None


class TrajectoryEnded(Record, frozen=True, kw_only=True, tag=True):
    """No more tokens will come."""

    trajectory_id: int
    status: TrajectoryStatus
    length: int
    error: str | None = None


class RewardArrived(Record, frozen=True, kw_only=True, tag=True):
    """A finished trajectory was scored; `reward` and `correct` are None where `status` is not
    ok."""

    trajectory_id: int
    status: Literal["ok", "timeout", "crashed", "invalid"]
    reward: float | None
    correct: bool | None = None
    """Whether the answer is right. Records from before scores said so have None."""
    parts: dict[str, float] = {}
    seconds: float = 0.0
    error: str | None = None


class WindowTrained(msgspec.Struct, frozen=True, kw_only=True):
    """A window as it went into an update."""

    window_id: int
    trajectory_id: int
    index: int
    start: int
    end: int
    trained: int
    """Tokens in the policy loss; the rest is in `dropped`."""
    dropped: dict[str, int]
    min_version: int
    max_version: int


class BatchTaken(Record, frozen=True, kw_only=True, tag=True):
    """Windows and value trajectories went to the learner."""

    update: int
    lineage: int
    version: int
    windows: list[WindowTrained]
    value_trajectories: list[int]


class BatchReturned(Record, frozen=True, kw_only=True, tag=True):
    """The learner died before it committed: what it had is ready again."""

    update: int
    lineage: int
    reason: str


class UpdateCommitted(Record, frozen=True, kw_only=True, tag=True):
    """The learner finished the batch taken for `update`. `metrics` include the coordinator's own
    (ledger/..., staleness/..., response_length/...). `trained_tokens` is the running total of the
    policy on this lineage; `skipped` says what broke it off. `train_time_s` is the training
    clock (evaluations and start-up apart)."""

    update: int
    lineage: int
    version: int
    train_time_s: float
    trained_tokens: int
    metrics: dict[str, float]
    diagnostics: list[TokenDiagnostics]
    skipped: str | None = None


class TokensDropped(Record, frozen=True, kw_only=True, tag=True):
    """Tokens of a trajectory left the ledger without training."""

    trajectory_id: int
    start: int
    end: int
    reason: DropReason
    tokens: int


class LineageBegan(Record, frozen=True, kw_only=True, tag=True):
    """The learner was restored to the state after `update`: what was committed later is ready again
    (one transaction), its tokens count as trained on an abandoned lineage."""

    lineage: int
    update: int
    version: int
    reason: str


class VersionPublished(Record, frozen=True, kw_only=True, tag=True):
    """Weights got a version."""

    version: int
    lineage: int
    update: int
    num_bytes: int


class VersionLoaded(Record, frozen=True, kw_only=True, tag=True):
    """A generator samples from this version from now on."""

    generator: str
    version: int
    gap_s: float
    load_s: float


class EvaluationDone(Record, frozen=True, kw_only=True, tag=True):
    """Held-out accuracy of one version. `label`: before, after, or during."""

    label: Literal["before", "during", "after"]
    update: int
    version: int
    num_prompts: int
    accuracy: float
    response_length: float
    max_response_length: int
    truncated: float
    failed: int
    seconds: float
    train_time_s: float


class CheckpointWritten(Record, frozen=True, kw_only=True, tag=True):
    """A checkpoint is complete."""

    update: int
    lineage: int
    path: str
    accuracy: float | None = None


class ProcessChanged(Record, frozen=True, kw_only=True, tag=True):
    """A process joined, left, died or reported its gauges."""

    name: str
    role: str
    pid: int
    host: str
    state: Literal["up", "gone", "lost"]
    detail: str = ""


class MetricsSampled(Record, frozen=True, kw_only=True, tag=True):
    """Gauges between updates (about once a second): who works, who waits, how much is in flight."""

    update: int
    metrics: dict[str, float]


class Incident(Record, frozen=True, kw_only=True, tag=True):
    """Something a user should know: a rejected message, a restart, a stall, a skipped prompt."""

    level: Literal["info", "warning", "error"]
    kind: str
    text: str


class RunPhase(Record, frozen=True, kw_only=True, tag=True):
    """The run moved on: starting, evaluating, training, stopping, finished, failed, interrupted."""

    phase: str
    detail: str = ""


AnyRecord = (
    GroupIssued | LeaseIssued | ChunkArrived | TrajectoryEnded | RewardArrived
    | BatchTaken | BatchReturned | UpdateCommitted | TokensDropped | LineageBegan
    | VersionPublished | VersionLoaded | EvaluationDone | CheckpointWritten
    | ProcessChanged | MetricsSampled | Incident | RunPhase
)  # fmt: skip
