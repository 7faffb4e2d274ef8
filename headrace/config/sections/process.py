"""Evaluation, stopping, checkpoints, storage, transport and dashboard of a run."""

import re
from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel

_PASSWORD = re.compile(r"(?P<before>://[^:/@]*:(?=[^@]*@)|password=)[^@&]*")


def masked(url: str) -> str:
    """The address of a database with stars for its password."""
    return _PASSWORD.sub(r"\g<before>***", url)


class EvaluationConfig(StrictModel):
    """Held-out accuracy: when and on how many prompts."""

    num_prompts: int = Field(default=1024, ge=1)
    """Held-out prompts, the same ones every time."""

    samples: int = Field(default=1, ge=1)
    """Answers to each of them."""

    rows: Literal["held_out", "training"] = "held_out"
    """Which prompts; `training`: the first ones that a run would train on, in the order of their
    file (what `headrace score` asks)."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature of evaluations; 0 is greedy."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of evaluations."""

    before: bool = True
    """Evaluate the starting policy."""

    after: bool = True
    """Evaluate the final policy."""

    every_updates: int | None = Field(default=None, ge=1)
    """Evaluate during training, training paused and its clock stopped. A policy that has not moved
    since the last evaluation (the value model warms up) is not evaluated again. None: never."""

    spacing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training time so far that may lie between two evaluations; of those that
    `every_updates` would make, the ones that are not needed for it are left out. 0.1: the time when
    a curve crossed something is known to a tenth, with as few evaluations as that takes. 0: none
    is left out."""

    spacing_from_s: float = Field(default=0.0, ge=0)
    """Seconds of training before which nothing is expected to be crossed: until then evaluations
    may lie as far apart as they may at that time."""

    only: bool = False
    """Evaluate `model.path` and end: no learner, no training (what `headrace eval` runs)."""


class StopConfig(StrictModel):
    """When a run ends by itself; the first condition that holds ends it."""

    updates: int | None = Field(default=None, ge=1)
    """Policy and value updates, value warm-up included."""

    train_time_s: float | None = Field(default=None, gt=0)
    """Seconds of training, evaluations and start-up apart."""

    tokens: int | None = Field(default=None, ge=1)
    """Response tokens trained by the policy."""

    accuracy: float | None = Field(default=None, gt=0, le=1)
    """Held-out accuracy in two successive evaluations (needs `evaluation.every_updates`)."""

    after_warmup: bool = False
    """End when the value model's warm-up is over. Its critic, in the last checkpoint, is then the
    `model.critic_path` of other runs (value pretraining)."""


class CheckpointConfig(StrictModel):
    """Checkpoints: how often and how many stay."""

    every_updates: int | None = Field(default=50, ge=1)
    """Updates between checkpoints; one is always written at the end. A learner that dies goes back
    to the last one, and what could be gone back to stays in the coordinator's memory. None: only at
    the end."""

    keep_last: int = Field(default=2, ge=1)
    """How many stay on disk."""


class StorageConfig(StrictModel):
    """Where metrics and tokens go."""

    database: str | None = None
    """A SQLAlchemy URL (for example postgresql+psycopg://...). None: SQLite in the run folder."""

    commit_interval_ms: float = Field(default=30.0, gt=0)
    """How long arrivals gather before one journal write, one fsync and one transaction."""

    segment_mib: float = Field(default=64.0, gt=0)
    """Size at which a journal segment is sealed and a new one begun."""

    token_diagnostics: bool = True
    """Keep advantage, value and logprob of every trained token."""

    @property
    def has_password(self) -> bool:
        """Whether the database's address holds one."""
        return self.database is not None and self.database != masked(self.database)


class TransportConfig(StrictModel):
    """Addresses, limits and deadlines on the wire."""

    host: str = "127.0.0.1"
    """Address the coordinator binds. With 0.0.0.0, other machines can join, with the run's keys."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port of the coordinator; 0: a free one."""

    curve_keys: str | None = None
    """Folder with CURVE key files made by `headrace keys`. None: the run makes keys of its own, in
    its folder."""

    max_message_mib: float = Field(default=64.0, gt=0)
    """Largest message accepted."""

    heartbeat_s: float = Field(default=1.0, gt=0)
    """Seconds between heartbeats."""

    heartbeat_timeout_s: float = Field(default=15.0, gt=0)
    """A process silent for so long is taken for dead and its leases return."""

    stall_timeout_s: float = Field(default=300.0, gt=0)
    """No progress for so long ends the run with the names of what waits."""

    self_test_s: float | None = Field(default=300.0, gt=0)
    """Seconds that each part of the self-test may take before training: a generator's first
    weights, its answer to a prompt, a reward of one answer. None: no self-test."""

    @property
    def part_bytes(self) -> int:
        """Most bytes of one part of a batch: a message, less room for its header."""
        return int(self.max_message_mib * 2**20 * 0.9)


class DashboardConfig(StrictModel):
    """The web page."""

    enabled: bool = True
    """Start the dashboard with the run."""

    host: str = "127.0.0.1"
    """Address the page is served on."""

    port: int = Field(default=8501, ge=0, le=65535)
    """Port of the page; where it is in use, the next free one is taken. 0: any free one."""

    stay_s: float = Field(default=600.0, ge=0)
    """Seconds that the page stays after the run has ended, as long as a browser has it open. 0: it
    ends with the run."""
