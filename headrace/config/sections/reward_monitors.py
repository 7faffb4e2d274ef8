"""Monitoring of rewards: audits by a second source, and alerts."""

from pydantic import Field

from headrace.config.sections.base import StrictModel


class AuditConfig(StrictModel):
    """A second source scores a share of the training prompts. Its scores train nothing, its
    failures stop nothing."""

    source: str
    """The source that is taken for the truth."""

    share: float = Field(default=0.02, gt=0, le=1)
    """Share of the training prompts, by a hash of id and `seed`."""

    seed: int = Field(default=0, ge=0)
    """Another seed audits other prompts."""


class AlertConfig(StrictModel):
    """Thresholds of alerts, which change nothing: once per crossing, again after five good updates.
    None: off."""

    gap_rise: float | None = Field(default=0.15, gt=0)
    """Rise of reward minus audited reward above its first value, beyond two standard errors."""

    length_correlation: float | None = Field(default=0.5, gt=0, lt=1)
    """Correlation of length and reward, while answers get longer."""

    length_rise: float = Field(default=0.2, ge=0)
    """Share of their first mean length by which answers get longer."""

    edit_distance: float | None = Field(default=0.0, ge=0)
    """Mean largest edit distance in a group, at most this: answers have become one."""

    entropy: float | None = Field(default=0.01, ge=0)
    """Entropy estimate below this, in nats per token."""

    answers: int = Field(default=256, ge=8)
    """Newest answers of a source, and audited ones, observed. No alert on fewer than a quarter (an
    eighth of audited ones)."""
