"""The tables: SQL as the projection of the journal.

`run` is `runs.id` everywhere, so that one PostgreSQL database holds many runs; `offset` is the
journal offset of the record that made a row, and where it is part of a key, the row's identity.
Times are seconds since the epoch. Positions count tokens from the end of the opening (the prompt),
runs are [start, end).
"""

from typing import Annotated, Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from headrace.protocol.records.record_types import RECORD_FORMAT

# SQLite numbers a primary key by itself only where its type is spelt INTEGER; both hold 64 bits.
_BIG = BigInteger().with_variant(Integer(), "sqlite")
AnySelect = Select[*tuple[Any, ...]]
"""A query with whatever columns."""
RunKey = Annotated[int, mapped_column(_BIG, ForeignKey("runs.id"), primary_key=True)]
Key = Annotated[int, mapped_column(_BIG, primary_key=True, autoincrement=False)]
TextKey = Annotated[str, mapped_column(Text, primary_key=True)]


EVALUATION_GROUPS = "purpose = 'eval'"
"""Groups of evaluations, as their index has it."""


def _partial_index(name: str, column: str, where: str) -> Index:
    """An index of the rows that meet a condition. It serves queries that have the condition as it
    stands here, with its values written out."""
    return Index(name, "run", column, sqlite_where=text(where), postgresql_where=text(where))


class Base(DeclarativeBase):
    """Base of all tables: counters are 64-bit, text is unbounded, constraints have fixed names."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        int: _BIG,
        float: Float(53),
        str: Text(),
        bool: Boolean(),
        bytes: LargeBinary(),
        dict[str, Any]: JSON(),
        list[Any]: JSON(),
    }


class Run(Base):
    """One run. `status` is its last phase; `config` the resolved configuration as JSON."""

    __tablename__ = "runs"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    run_id: Mapped[str] = mapped_column(unique=True)
    name: Mapped[str]
    config: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(default="starting")
    detail: Mapped[str] = mapped_column(default="")
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    lineage: Mapped[int] = mapped_column(default=0)


class Projection(Base):
    """Progress of SQL along the journal: next offset to apply, last record's time. `format` is the
    record format that the rows were made from; those of another are refused."""

    __tablename__ = "projection"
    run: Mapped[RunKey]
    next_offset: Mapped[int] = mapped_column(default=0)
    last_at: Mapped[float | None]
    format: Mapped[int] = mapped_column(default=RECORD_FORMAT)


class Process(Base):
    """One process by name; `starts` counts how often it came up."""

    __tablename__ = "processes"
    run: Mapped[RunKey]
    name: Mapped[TextKey]
    role: Mapped[str]
    pid: Mapped[int]
    host: Mapped[str]
    state: Mapped[str]
    detail: Mapped[str]
    first_seen_at: Mapped[float]
    changed_at: Mapped[float]
    starts: Mapped[int]


class Update(Base):
    """One batch. `state`: taken, returned, committed, skipped; `abandoned`: committed or skipped
    after the point to which a later lineage went back."""

    __tablename__ = "updates"
    __table_args__ = (Index(None, "run", "update"),)
    run: Mapped[RunKey]
    lineage: Mapped[Key]
    update: Mapped[Key]
    version: Mapped[int]
    state: Mapped[str]
    taken_at: Mapped[float]
    committed_at: Mapped[float | None]
    train_time_s: Mapped[float | None]
    trained_tokens: Mapped[int | None]
    num_windows: Mapped[int]
    num_values: Mapped[int]
    skipped: Mapped[str | None]
    abandoned: Mapped[bool] = mapped_column(default=False)
    offset: Mapped[int]


class Metric(Base):
    """One number. `lineage` is null for gauges sampled between updates."""

    __tablename__ = "metrics"
    __table_args__ = (Index(None, "run", "update"),)
    run: Mapped[RunKey]
    name: Mapped[TextKey]
    offset: Mapped[Key]
    update: Mapped[int]
    lineage: Mapped[int | None]
    value: Mapped[float | None]
    """Null where the number was not finite."""
    wall_time: Mapped[float]


class MetricArray(Base):
    """An array metric: a number for each bin, null for an empty bin; `lineage` as for metrics."""

    __tablename__ = "metric_arrays"
    run: Mapped[RunKey]
    name: Mapped[TextKey]
    offset: Mapped[Key]
    update: Mapped[int]
    lineage: Mapped[int | None]
    values: Mapped[list[Any]]
    wall_time: Mapped[float]


class MetricInfo(Base):
    """Unit, meaning and healthy range of a metric; of an array the names of its bins."""

    __tablename__ = "metric_info"
    name: Mapped[TextKey]
    unit: Mapped[str]
    meaning: Mapped[str]
    healthy: Mapped[str]
    bins: Mapped[list[Any]]


class Prompt(Base):
    """One prompt. `prompt_ids` are little-endian int32, `images` the SHA-256 of each."""

    __tablename__ = "prompts"
    run: Mapped[RunKey]
    prompt_id: Mapped[TextKey]
    text: Mapped[str]
    answer: Mapped[str]
    info: Mapped[str]
    prompt_ids: Mapped[bytes]
    images: Mapped[list[Any] | None]
    offset: Mapped[int]


class Group(Base):
    """One issue of a prompt."""

    __tablename__ = "groups"
    __table_args__ = (
        Index(None, "run", "prompt_id"),
        _partial_index("ix_groups_evaluation", "offset", EVALUATION_GROUPS),
    )
    run: Mapped[RunKey]
    group_id: Mapped[Key]
    prompt_id: Mapped[str]
    position: Mapped[int]
    domain: Mapped[str] = mapped_column(server_default="")
    """That of a mixture, else empty."""
    purpose: Mapped[str]
    size: Mapped[int]
    issued_at: Mapped[float]
    offset: Mapped[int]


class Trajectory(Base):
    """One answer.

    `status`: issued, running, finished, truncated, aborted, failed. `length` counts all its
    positions: `sampled` by the policy, `inserted` by others. `rewards` are [value, position] pairs,
    those of lines on account first; an empty list: all of `reward` at the last sampled token.
    `audit_...` is what a second source said of it, where its prompt is audited. Its tokens are in
    the journal records from `first_offset` to `last_offset`."""

    __tablename__ = "trajectories"
    __table_args__ = (
        *(Index(None, "run", column) for column in ("group_id", "status", "finished_at")),
        _partial_index("ix_trajectories_reward_error", "rewarded_at", "reward_error IS NOT NULL"),
        _partial_index("ix_trajectories_audit_error", "rewarded_at", "audit_error IS NOT NULL"),
    )
    run: Mapped[RunKey]
    trajectory_id: Mapped[Key]
    group_id: Mapped[int]
    attempt: Mapped[int]
    purpose: Mapped[str]
    seed: Mapped[int]
    status: Mapped[str]
    finish: Mapped[str | None]
    error: Mapped[str | None]
    reward: Mapped[float | None]
    correct: Mapped[bool | None]
    rewards: Mapped[list[Any] | None]
    reward_source: Mapped[str | None]
    reward_status: Mapped[str | None]
    reward_parts: Mapped[dict[str, Any] | None]
    reward_seconds: Mapped[float | None]
    reward_error: Mapped[str | None]
    reward_model: Mapped[str | None]
    audit_source: Mapped[str | None]
    audit_status: Mapped[str | None]
    audit_reward: Mapped[float | None]
    audit_correct: Mapped[bool | None]
    audit_parts: Mapped[dict[str, Any] | None]
    audit_seconds: Mapped[float | None]
    audit_error: Mapped[str | None]
    length: Mapped[int]
    sampled: Mapped[int] = mapped_column(default=0)
    inserted: Mapped[int] = mapped_column(default=0)
    surprise: Mapped[float] = mapped_column(server_default="0")
    """Sum of the negative logprobs of what was sampled, nats."""
    min_version: Mapped[int | None]
    max_version: Mapped[int | None]
    generator: Mapped[str | None]
    issued_at: Mapped[float]
    first_token_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    rewarded_at: Mapped[float | None]
    first_offset: Mapped[int | None]
    last_offset: Mapped[int | None]
    offset: Mapped[int]


class LineScore(Base):
    """One scoring of lines of a trajectory that perhaps went on.

    `lines` are [position, score] of where they end (null: a neutral line), `rewards` [value,
    position] of what they earned on account; `through`: the source has answered for all lines that
    end before this position."""

    __tablename__ = "line_scores"
    __table_args__ = (Index(None, "run", "trajectory_id"),)
    run: Mapped[RunKey]
    offset: Mapped[Key]
    at: Mapped[float]
    trajectory_id: Mapped[int]
    source: Mapped[str]
    status: Mapped[str]
    through: Mapped[int]
    lines: Mapped[list[Any]]
    rewards: Mapped[list[Any]]
    seconds: Mapped[float]
    error: Mapped[str | None]


class Window(Base):
    """One window from the moment it is complete.

    `state`: closed, ready, taken, trained, dropped, since `at`. `tokens` were sampled; `masked`
    lists [reason, start, end, tokens] of those that its update keeps out of the loss,
    `masked_tokens` together. `reason`: why all of it was dropped. `lines`: whether lines in it had
    been scored when it got ready (scored, late, failed); null where no source scores any. `update`,
    `lineage` and `version` (the newest weights when it was taken) are those of the update that has
    it, and null where none has."""

    __tablename__ = "windows"
    __table_args__ = (
        *(Index(None, "run", column) for column in ("trajectory_id", "update")),
        _partial_index("ix_windows_lost", "at", "state = 'dropped' OR masked_tokens > 0"),
    )
    run: Mapped[RunKey]
    window_id: Mapped[Key]
    trajectory_id: Mapped[int]
    index: Mapped[int]
    start: Mapped[int]
    end: Mapped[int]
    tokens: Mapped[int]
    min_version: Mapped[int]
    max_version: Mapped[int]
    final: Mapped[bool]
    state: Mapped[str]
    at: Mapped[float]
    reason: Mapped[str | None]
    lines: Mapped[str | None]
    masked: Mapped[list[Any]]
    masked_tokens: Mapped[int]
    lineage: Mapped[int | None]
    update: Mapped[int | None]
    version: Mapped[int | None]
    offset: Mapped[int]


class ValueUse(Base):
    """A finished trajectory since it first went into a value batch. `state`: taken, trained,
    dropped, or waiting again."""

    __tablename__ = "value_uses"
    __table_args__ = (Index(None, "run", "update"),)
    run: Mapped[RunKey]
    trajectory_id: Mapped[Key]
    state: Mapped[str]
    lineage: Mapped[int | None]
    update: Mapped[int | None]
    offset: Mapped[int]


class TokenLoss(Base):
    """Number of tokens that a generator made and the journal lacks.

    `reason`: held (thrown away at a window's border, as they were meant to be), refused (they could
    not be taken), moved (their trajectory had been given to another generator), died (with their
    generator)."""

    __tablename__ = "token_losses"
    run: Mapped[RunKey]
    generator: Mapped[TextKey]
    reason: Mapped[TextKey]
    tokens: Mapped[int]


class WeightVersion(Base):
    """The (lineage, update) of a weight version, and the ranker trained along with it."""

    __tablename__ = "weight_versions"
    run: Mapped[RunKey]
    version: Mapped[Key]
    lineage: Mapped[int]
    update: Mapped[int]
    num_bytes: Mapped[int]
    published_at: Mapped[float]
    ranker: Mapped[str | None]
    offset: Mapped[int]


class VersionLoad(Base):
    """A generator took a version: how long requests stood still (`gap_s`) and the load took."""

    __tablename__ = "version_loads"
    run: Mapped[RunKey]
    offset: Mapped[Key]
    at: Mapped[float]
    generator: Mapped[str]
    version: Mapped[int]
    gap_s: Mapped[float]
    load_s: Mapped[float]


class Checkpoint(Base):
    """A complete checkpoint."""

    __tablename__ = "checkpoints"
    run: Mapped[RunKey]
    offset: Mapped[Key]
    at: Mapped[float]
    lineage: Mapped[int]
    update: Mapped[int]
    path: Mapped[str]
    accuracy: Mapped[float | None]


class Evaluation(Base):
    """Held-out accuracy of one version."""

    __tablename__ = "evaluations"
    run: Mapped[RunKey]
    offset: Mapped[Key]
    at: Mapped[float]
    label: Mapped[str]
    update: Mapped[int]
    version: Mapped[int]
    num_prompts: Mapped[int]
    accuracy: Mapped[float | None]
    response_length: Mapped[float | None]
    max_response_length: Mapped[int]
    truncated: Mapped[float | None]
    failed: Mapped[int]
    seconds: Mapped[float]
    train_time_s: Mapped[float]
    prefixes: Mapped[int]
    attainable: Mapped[float | None]
    attainable_low: Mapped[float | None]
    attainable_high: Mapped[float | None]


class Event(Base):
    """An event for people: a phase, an incident, a process, a rollback."""

    __tablename__ = "events"
    run: Mapped[RunKey]
    offset: Mapped[Key]
    at: Mapped[float]
    level: Mapped[str]
    kind: Mapped[str]
    text: Mapped[str]
