"""Evaluation, stopping, checkpoints, storage, transport and dashboard of a run."""

import re
from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel

_PASSWORD = re.compile(r"(://[^:/]*:)[^@]*(?=@)|(password=)[^&]*")


def mask_password(url: str) -> str:
    """The address of a database with stars for its password."""
    return _PASSWORD.sub(r"\1\2***", url)


class EvaluationConfig(StrictModel):
    """Held-out accuracy: when and on how many prompts."""

    num_prompts: int = Field(default=1024, ge=1)
    """Held-out prompts, the same ones every time."""

    samples: int = Field(default=1, ge=1)
    """Answers to each; of several `headrace eval` prints pass@k, too."""

    rows: Literal["held_out", "training"] = "held_out"
    """training: its first prompts in file order, sampled as there (`headrace score`)."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 is greedy."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus."""

    before: bool = True
    """Evaluate the starting policy."""

    after: bool = True
    """Evaluate the final policy."""

    every_updates: int | None = Field(default=None, ge=1)
    """Evaluate every n updates if the policy moved; training and clock pause. None: never."""

    mode: Literal["exact", "along"] = "exact"
    """Evaluations of `every_updates`. exact: of one version, while training pauses. along: beside
    training, a span of versions answers; metrics `along/*`, no verdict reads them."""

    spacing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the training time so far that may pass between evaluations; those of `every_updates`
    that are not needed for it are left out. 0.1: times to a target are known to a tenth."""

    spacing_from_s: float = Field(default=0.0, ge=0)
    """Seconds of training before which `spacing` counts as at that time."""

    probes: int = Field(default=64, ge=0)
    """Prefixes of an evaluation's answers, at most, continued four times each where a value model
    learns: what it could explain (page Critic). Their tokens are expected to be at most a quarter
    of the evaluation's; there are none before training. 0: none."""

    only: bool = False
    """Evaluate `model.path` and end, without a learner (`headrace eval`)."""


class StopConfig(StrictModel):
    """Stop conditions: a run ends at the first that holds."""

    updates: int | None = Field(default=None, ge=1)
    """Updates, value warm-up included."""

    train_time_s: float | None = Field(default=None, gt=0)
    """Seconds of training, without evaluations and start-up."""

    tokens: int | None = Field(default=None, ge=1)
    """Response tokens trained by the policy."""

    accuracy: float | None = Field(default=None, gt=0, le=1)
    """Held-out accuracy in two successive evaluations."""

    after_warmup: bool = False
    """End after the value model's warm-up; its critic is other runs' `model.critic_path`."""


class CheckpointConfig(StrictModel):
    """Checkpoints: how often and how many stay."""

    every_updates: int | None = Field(default=50, ge=1)
    """Updates between checkpoints; one is written at the end. A learner that dies resumes from the
    last; until then the coordinator keeps what it would need in memory. None: only at the end."""

    keep_last: int = Field(default=2, ge=1)
    """Number of checkpoints that stay on disk. All answers trained since the oldest of them stay in
    the coordinator's memory: 8 bytes a token, and some kilobytes each."""


class StorageConfig(StrictModel):
    """Storage of metrics and tokens."""

    database: str | None = None
    """A SQLAlchemy URL (postgresql+psycopg://...). None: SQLite in the run folder."""

    commit_interval_ms: float = Field(default=30.0, gt=0)
    """Time that arrivals gather before a journal write with one fsync and one transaction."""

    segment_mib: float = Field(default=64.0, gt=0)
    """Size at which a journal segment is sealed."""

    token_diagnostics: bool = True
    """Keep advantage, value and logprob of every trained token."""

    @property
    def has_password(self) -> bool:
        """Return whether the database's address holds one."""
        return self.database is not None and self.database != mask_password(self.database)


class TransportConfig(StrictModel):
    """Addresses, limits and deadlines on the wire."""

    host: str = "127.0.0.1"
    """Address the coordinator binds. 0.0.0.0: other machines can join, with the run's keys."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port of the coordinator; 0: a free one."""

    curve_keys: str | None = None
    """Folder of `headrace keys`. None: the run makes its own."""

    max_message_mib: float = Field(default=64.0, gt=0)
    """Largest message accepted."""

    heartbeat_s: float = Field(default=1.0, gt=0)
    """Seconds between heartbeats."""

    heartbeat_timeout_s: float = Field(default=15.0, gt=0)
    """Silence after which a process is taken for dead and its leases return."""

    stall_timeout_s: float = Field(default=300.0, gt=0)
    """Time without progress that ends the run with what waits."""

    self_test_s: float | None = Field(default=300.0, gt=0)
    """Seconds of each self-test: first weights, an answer, its reward. None: no self-test."""

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of a message."""
        return int(self.max_message_mib * 2**20)

    @property
    def part_bytes(self) -> int:
        """Maximum bytes of one part of a batch: a message less its header."""
        return int(self.max_bytes * 0.9)

    @property
    def request_bytes(self) -> int:
        """Maximum bytes of tokens, leases and requests: peers may not know a higher limit."""
        return min(8 << 20, self.part_bytes)


class DashboardConfig(StrictModel):
    """The web page."""

    enabled: bool = True
    """Start the dashboard with the run."""

    host: str = "127.0.0.1"
    """Address the page is served on."""

    port: int = Field(default=8501, ge=0, le=65535)
    """Port of the page; where it is in use, the next free one is taken. 0: any free one."""

    stay_s: float = Field(default=600.0, ge=0)
    """Seconds that the page stays open in a browser after the run. 0: it ends with the run."""
