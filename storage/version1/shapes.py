"""What a coordinator of record format 1 wrote down, where it differs from today's records.

Kinds that are not here have kept their shape. These do not change any more.
"""

import msgspec

from headrace.protocol import records as today
from headrace.protocol.records import DropReason, Record

FLAT_ARRAYS = {
    **{f"staleness/{name}": [f"staleness/{name}/decile_{d}" for d in range(10)]
       for name in ("drop_share", "length", "mask_share")},
    **{f"value/{name}": [f"value/{name}_at_{d}0" for d in range(10)] for name in ("bias", "rmse")},
    "egae/lambda_by_length": [
        f"egae/lambda_{name}"
        for name in ("to_64", "to_256", "to_1024", "to_4096", "to_16384", "over_16384")
    ],
}  # fmt: skip
"""Metrics that are arrays today, and the names that their numbers had."""
DIAGNOSTIC_NAMES = {"logprobs": "learner_logprobs"}
"""Columns of the token diagnostics that have another name today."""


class WindowTrained(msgspec.Struct, frozen=True, kw_only=True):
    """A window as it went into an update: `trained` tokens in the loss, the others by reason."""

    window_id: int
    trajectory_id: int
    index: int
    start: int
    end: int
    trained: int
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
    """What the learner had is ready again."""

    update: int
    lineage: int
    reason: str


class UpdateCommitted(Record, frozen=True, kw_only=True, tag=True):
    """The learner finished the batch; its diagnostics were never in the journal."""

    update: int
    lineage: int
    version: int
    train_time_s: float
    trained_tokens: int
    metrics: dict[str, float]
    skipped: str | None = None


class TokensDropped(Record, frozen=True, kw_only=True, tag=True):
    """Windows that lie in [start, end), and what is there of the next one, will not be trained."""

    trajectory_id: int
    start: int
    end: int
    reason: DropReason
    tokens: int


class LineageBegan(Record, frozen=True, kw_only=True, tag=True):
    """What was committed after `update` is ready again."""

    lineage: int
    update: int
    version: int
    reason: str


AnyRecord = (
    BatchTaken | BatchReturned | UpdateCommitted | TokensDropped | LineageBegan
    | today.GroupIssued | today.LeaseIssued | today.TrajectoryEnded | today.RewardArrived
    | today.VersionPublished | today.VersionLoaded | today.EvaluationDone | today.CheckpointWritten
    | today.ProcessChanged | today.MetricsSampled | today.Incident | today.RunPhase
)  # fmt: skip
"""What the body of a journal's row can be; tokens have columns of their own."""
