"""How rewards are watched: which answers a second source scores too, and what raises an alert."""

from pydantic import Field

from headrace.config.sections.base import StrictModel


class AuditConfig(StrictModel):
    """A second opinion: a share of the training prompts is also scored by another source. Its
    scores train nothing, and its failures stop nothing."""

    source: str
    """The source of `[reward.sources.NAME]` that is taken for the truth."""

    share: float = Field(default=0.02, gt=0, le=1)
    """Share of the training prompts, chosen by a hash of the prompt's id and `seed`."""

    seed: int = Field(default=0, ge=0)
    """Another seed audits other prompts."""


class AlertConfig(StrictModel):
    """When the monitors of a source of rewards raise an alert, once for each crossing, and again
    only after five updates on the good side. An alert is an event and changes nothing. None
    switches one off."""

    gap_rise: float | None = Field(default=0.15, gt=0)
    """Reward minus audited reward has risen so far above its first value, and by more than two
    standard errors."""

    length_correlation: float | None = Field(default=0.5, gt=0, lt=1)
    """Length and reward of answers go together more than this while answers get longer."""

    length_rise: float = Field(default=0.2, ge=0)
    """Answers get longer: by so large a share of their first mean length."""

    edit_distance: float | None = Field(default=0.0, ge=0)
    """The largest edit distance between two answers of a group is no more than this on average:
    answers of a prompt have become one."""

    entropy: float | None = Field(default=0.01, ge=0)
    """The entropy estimate of answers, in nats a token, is less than this."""

    answers: int = Field(default=256, ge=8)
    """Newest answers of a source, and newest audited ones, that the monitors look at. No alert is
    raised on fewer than a quarter of them (an eighth of audited ones)."""
