"""Records of the journal: SQL projects them, a replay rebuilds the coordinator.

Only the coordinator makes records, in the order of events, and only `storage` reads or writes them
on disk. Positions count tokens from the end of a sequence's opening (see `token_spans`), runs of
them are [start, end). Every record is frozen and tagged with its class name. What happens to a
window is recorded, never inferred: each step of its life is a record that names it, so a reader
needs no rule of the coordinator. Raise RECORD_FORMAT when a record changes its meaning: `storage`
refuses other ones.
"""

import time
from typing import Literal

import msgspec

from headrace.protocol.fields import Metric
from headrace.protocol.messages.control import Purpose
from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.token_spans import Float32, Int32, MediaRun, Reward, Span, Streams

DropReason = Literal[
    "boundary_mask", "stale", "filtered", "overlong", "zero_weight", "value_warmup",
    "reward_failed", "non_finite", "discarded_at_end",
]  # fmt: skip
RECORD_FORMAT = 2
TrajectoryStatus = Literal["running", "finished", "truncated", "aborted", "failed"]
ScoreStatus = Literal["ok", "timeout", "crashed", "invalid"]
LinesState = Literal["scored", "late", "failed"]


class Record(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all records. `at`: when it was made, in seconds since the epoch."""

    at: float = msgspec.field(default_factory=time.time)


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
    messages: str = ""
    """JSON of the row's prompt: a chat's messages, or a text that the chat template framed. Empty:
    the policy reads the text as it is."""
    prompt_ids: Int32
    """The opening: all tokens before position 0."""
    trajectory_ids: list[int]
    seeds: list[int]
    media: list[MediaRun] = []
    """The images of the opening."""
    processor: str = ""
    """Image processor of its image tokens, with its settings; "" where there are none."""
    aside: Int32 | None = None
    """Tokens that the value model reads between the opening and position 0."""
    domain: str = ""
    """That of a mixture which its prompt is from."""
    domain_position: int = 0
    """Of the prompt in its domain."""
    prefix: int = 0
    """Last tokens of the opening that begin the answer (probes)."""


class LeaseIssued(Record, frozen=True, kw_only=True, tag=True):
    """A generator was assigned a trajectory, to continue it from position `start`."""

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
    streams: Streams | None = None
    """None: the policy sampled every token, and they have no other data."""


class TrajectoryEnded(Record, frozen=True, kw_only=True, tag=True):
    """No more tokens will come."""

    trajectory_id: int
    status: TrajectoryStatus
    length: int
    error: str | None = None


class RewardArrived(Record, frozen=True, kw_only=True, tag=True):
    """A finished trajectory was scored; `reward` and `correct` are None where `status` is not
    ok. `source` is the source of rewards that its prompt was routed to."""

    trajectory_id: int
    status: ScoreStatus
    reward: float | None
    rewards: list[Reward] = []
    """Rewards besides those of `LinesScored`; empty: all of it at the last sampled token."""
    correct: bool | None = None
    """True for a right answer."""
    parts: dict[str, float] = {}
    seconds: float = 0.0
    error: str | None = None
    source: str = "default"
    model: str | None = None
    """Version and digest of the model that scored, where the run knows it."""


class AuditArrived(Record, frozen=True, kw_only=True, tag=True):
    """A second source, `source`, scored an audited trajectory; nothing trains on it. `reward` and
    `correct` are None where `status` is not ok."""

    trajectory_id: int
    source: str
    status: ScoreStatus
    reward: float | None
    correct: bool | None = None
    parts: dict[str, float] = {}
    seconds: float = 0.0
    error: str | None = None


class LineScore(msgspec.Struct, frozen=True, array_like=True):
    """Score of the line that ends at `position`; None: it is neutral."""

    position: int
    score: float | None


class LinesScored(Record, frozen=True, kw_only=True, tag=True):
    """A source scored lines of a trajectory, which may go on: all that end before position
    `through` and were not requested before. `lines` is empty where `status` is not ok. `rewards`
    are earned on account, in windows that no update has had yet; those of the last window wait for
    the outcome."""

    trajectory_id: int
    source: str
    status: ScoreStatus
    through: int
    lines: list[LineScore] = []
    rewards: list[Reward] = []
    seconds: float = 0.0
    error: str | None = None


# -- the life of a window --------------------------------------------------------------------------


class ClosedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Positions [start, end) of a trajectory are window `index`; `tokens` of them were sampled, by
    weights `min_version` to `max_version`. `final`: the trajectory ends with it."""

    window_id: int
    trajectory_id: int
    index: int
    start: int
    end: int
    tokens: int
    min_version: int
    max_version: int
    final: bool = False


class WindowsClosed(Record, frozen=True, kw_only=True, tag=True):
    """These windows are complete. They wait for what they need before they can be trained."""

    windows: list[ClosedWindow]


class WindowsReady(Record, frozen=True, kw_only=True, tag=True):
    """Nothing is missing any more: these windows can be trained, the first ones first."""

    window_ids: list[int]
    lines: dict[int, LinesState] = {}
    """State of the lines that end in a window, where a source was to score them: all were scored,
    their deadline had passed (late), or their scoring failed. In the latter two cases tokens are
    trained without the missing scores."""


class WindowsRecalled(Record, frozen=True, kw_only=True, tag=True):
    """The answers ended with these windows, which are final now and wait for the reward."""

    window_ids: list[int]


class WindowsDropped(Record, frozen=True, kw_only=True, tag=True):
    """No update will train these windows, nor the value model these trajectories."""

    window_ids: list[int]
    reason: DropReason
    value_trajectories: list[int] = []


class MaskedRun(msgspec.Struct, frozen=True, array_like=True):
    """Sampled tokens among positions [start, end), `tokens` of them, are kept out of the loss."""

    reason: DropReason
    start: int
    end: int
    tokens: int


class TakenWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A window as it goes into an update; its sampled tokens outside `masked` are trained."""

    window_id: int
    masked: list[MaskedRun] = []


class BatchTaken(Record, frozen=True, kw_only=True, tag=True):
    """Windows and value trajectories went to the learner. `batch_id` is no other batch's, in the
    whole run; None in records from before batches had one."""

    update: int
    lineage: int
    version: int
    windows: list[TakenWindow]
    value_trajectories: list[int]
    batch_id: int | None = None


class BatchReturned(Record, frozen=True, kw_only=True, tag=True):
    """The learner's weights are without this batch: what it had is ready again."""

    update: int
    lineage: int
    reason: str
    window_ids: list[int]
    value_trajectories: list[int]
    batch_id: int | None = None


class UpdateCommitted(Record, frozen=True, kw_only=True, tag=True):
    """The learner finished the batch taken for `update`; these windows and value trajectories were
    in it. `metrics` include the coordinator's own (ledger/..., staleness/..., ...).
    `trained_tokens` is the running total of the policy on this lineage; `skipped` says what broke
    the update off, so that all its windows are dropped. `train_time_s` is the training clock
    (evaluations and start-up apart)."""

    update: int
    lineage: int
    version: int
    train_time_s: float
    trained_tokens: int
    window_ids: list[int]
    value_trajectories: list[int]
    metrics: dict[str, Metric]
    diagnostics: list[TokenDiagnostics]
    skipped: str | None = None
    batch_id: int | None = None


class TokensLost(Record, frozen=True, kw_only=True, tag=True):
    """Tokens were generated that the journal will never have. held: the generator discarded them
    when it was asked to stop at a window's border. refused: the chunk could not be taken, or its
    lease was over although its generator had it. moved: while its generator was silent, the
    trajectory had been given to another one, which sampled these tokens itself. died: a generator
    that is gone had not sent them when it last reported, at most about a second before: an
    estimate. `total`: what the process `pid` had thrown away at holds by then."""

    generator: str
    tokens: int
    reason: Literal["held", "refused", "moved", "died"]
    pid: int = 0
    total: int = 0


class LineageBegan(Record, frozen=True, kw_only=True, tag=True):
    """The learner was restored to the state after `update`. What was committed later is ready again
    (these windows and value trajectories, in one transaction), its tokens count as trained on an
    abandoned lineage."""

    lineage: int
    update: int
    version: int
    reason: str
    window_ids: list[int]
    value_trajectories: list[int]


class Forgotten(Record, frozen=True, kw_only=True, tag=True):
    """No rollback can reach an update at or before this one any more, so whatever only such a
    rollback would need is let go."""

    update: int


class Restarted(Record, frozen=True, kw_only=True, tag=True):
    """A new coordinator took over. Leases stay in force, and lease ids go on from `next_lease`. An
    evaluation that was under way begins again, unless `keeps_evaluation`: weights that nobody
    trains are the same ones still."""

    next_lease: int
    keeps_evaluation: bool = False


class Milestone(msgspec.Struct, frozen=True, array_like=True):
    """Groups from `group` on were issued at the journal's record `record` or later."""

    record: int
    group: int


class Snapshot(Record, frozen=True, kw_only=True, tag=True):
    """The coordinator's state after all records before this one, so that a restart need not read
    those. It changes nothing. `state` is the coordinator's own
    (`coordinator.persistence.snapshots`); prompts and tokens are not in it, because the journal has
    them: those that it still needs stand at the first milestone's record or later."""

    state: bytes
    milestones: list[Milestone]


class VersionIssued(Record, frozen=True, kw_only=True, tag=True):
    """This version number is given out and will never be another's."""

    version: int


class VersionPublished(Record, frozen=True, kw_only=True, tag=True):
    """Weights got a version; `ranker` names that of the ranker that is trained along."""

    version: int
    lineage: int
    update: int
    num_bytes: int
    ranker: str | None = None


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
    continuations: list[tuple[int, list[float]]] = []
    """The returns of its probes by prefix, each with the prompt's position."""
    prefixes: int = 0
    """Probed prefixes of this and earlier evaluations that the next three figures rest on."""
    attainable: float | None = None
    """The attainable share, None while there are too few prefixes; its 95 % interval."""
    attainable_low: float | None = None
    attainable_high: float | None = None


class CheckpointWritten(Record, frozen=True, kw_only=True, tag=True):
    """A checkpoint is complete."""

    update: int
    lineage: int
    path: str
    accuracy: float | None = None


class ProcessChanged(Record, frozen=True, kw_only=True, tag=True):
    """A process joined, left or died."""

    name: str
    role: str
    pid: int
    host: str
    state: Literal["up", "gone", "lost"]
    detail: str = ""


class MetricsSampled(Record, frozen=True, kw_only=True, tag=True):
    """Gauges between updates (about once a second): work, waits, tokens in flight."""

    update: int
    metrics: dict[str, float]


class Incident(Record, frozen=True, kw_only=True, tag=True):
    """Something a user should know: a rejected message, a restart, a stall, a skipped prompt."""

    level: Literal["info", "warning", "error"]
    kind: str
    text: str


class RunPhase(Record, frozen=True, kw_only=True, tag=True):
    """The run moved on: starting, evaluating, training, stopping, finished, failed, interrupted.
    `config`: SHA-256 of the `resolved.json` that a coordinator starts with."""

    phase: str
    detail: str = ""
    config: str | None = None


AnyRecord = (
    GroupIssued | LeaseIssued | ChunkArrived | TrajectoryEnded | RewardArrived
    | AuditArrived | LinesScored
    | WindowsClosed | WindowsReady | WindowsRecalled | WindowsDropped
    | BatchTaken | BatchReturned | UpdateCommitted | TokensLost
    | LineageBegan | Forgotten | Restarted | Snapshot | VersionIssued | VersionPublished
    | VersionLoaded | EvaluationDone | CheckpointWritten
    | ProcessChanged | MetricsSampled | Incident | RunPhase
)  # fmt: skip
