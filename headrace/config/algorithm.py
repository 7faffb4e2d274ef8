"""An algorithm as data: every slot of `learner.algorithm.Algorithm` is named here."""

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.base import StrictModel


class EgaeConfig(StrictModel):
    """Extended GAE on unfinished windows, GAE on finished ones (needs a value model)."""

    kind: Literal["egae"]

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount."""

    gae_lambda_policy: float = Field(default=0.95, ge=0, le=1)
    """Lambda of the policy's advantages; the floor when the length-adaptive lambda is on."""

    length_adaptive_alpha: float | None = Field(default=None, gt=0)
    """alpha of lambda = 1 - 1/(alpha * length) (VAPO eq. 5). None: a fixed lambda."""

    half_window_credit: bool = True
    """An unfinished trajectory counts half a window longer in the adaptive lambda (T-PPO)."""

    boundary: Literal["copy", "bootstrap", "terminal"] = "copy"
    """V(s_l) at a cut: copy V(s_{l-1}) (T-PPO), ask the critic, or 0 (a mistake, for ablation)."""

    boundary_mask: int = Field(default=0, ge=0)
    """Last tokens of an unfinished window left out of the policy loss (T-PPO recipe: 8)."""

    whiten: bool = True
    """Subtract the mean and divide by the standard deviation over the batch's trained tokens."""

    clamp: float | None = Field(default=10.0, gt=0)
    """Bound of the advantage's absolute value. None: no bound."""


class GroupAdvantageConfig(StrictModel):
    """Critic-free advantages from the rewards of a group."""

    kind: Literal["group"]

    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    """What is subtracted from a trajectory's reward."""

    scale: Literal["std", "none"] = "std"
    """Divide by the group's standard deviation (sample std + 1e-6)."""

    whiten: bool = False
    """Whiten over the batch's trained tokens as well (REINFORCE++)."""

    clamp: float | None = Field(default=None, gt=0)
    """Bound of the advantage's absolute value."""


AdvantageConfig = Annotated[EgaeConfig | GroupAdvantageConfig, Field(discriminator="kind")]


class ValueTargetConfig(StrictModel):
    """The value model: its targets and its loss."""

    gae_lambda_value: float = Field(default=1.0, ge=0, le=1)
    """Lambda of the value target; 1 is the Monte-Carlo return."""

    value_clip_low: float | None = Field(default=None, gt=0)
    """How far below the old value the clipped value may go (T-PPO recipe: 0.5). None: no clip."""

    value_clip_high: float | None = Field(default=None, gt=0)
    """How far above the old value the clipped value may go (T-PPO recipe: 0.6)."""

    aggregate: Literal["sample_mean", "token_mean"] = "sample_mean"
    """How token losses become one number."""

    warmup_updates: int = Field(default=0, ge=0)
    """Updates that train the value model alone, on a fixed policy (VC-PPO value pretraining)."""

    warmup_epochs: int = Field(default=1, ge=1)
    """Passes over the value batch in each warm-up update."""

    warmup_explained_variance: float | None = Field(default=None, lt=1)
    """End the warm-up early once the explained variance reaches this."""


class RatioConfig(StrictModel):
    """Which logprobs anchor the importance ratio."""

    kind: Literal["behaviour", "decoupled", "tis"] = "behaviour"
    """behaviour: ratio to the sampler's logprobs. decoupled: clip to proximal logprobs recomputed
    at the update's start, weighted by proximal/behaviour. tis: the same weight truncated from above
    (engine mismatch correction)."""

    cap: float = Field(default=2.0, gt=0)
    """Largest proximal/behaviour weight."""

    over_cap: Literal["clamp", "mask"] = "clamp"
    """Tokens over the cap are clamped to it or masked."""


class PolicyLossConfig(StrictModel):
    """The clipped surrogate."""

    kind: Literal["clipped", "reinforce"] = "clipped"
    """clipped: PPO's surrogate. reinforce: logprob times advantage."""

    clip_ratio_low: float = Field(default=0.2, gt=0, lt=1)
    """epsilon below 1."""

    clip_ratio_high: float = Field(default=0.28, gt=0)
    """epsilon above 1 (clip-higher when larger than the lower one)."""

    dual_clip: float | None = Field(default=10.0, gt=1)
    """Bound of the loss for negative advantages at large ratios. None: no dual clip."""


class PenaltyConfig(StrictModel):
    """Terms added to the policy loss."""

    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""

    positive_nll_coef: float = Field(default=0.0, ge=0)
    """Weight of the likelihood of tokens of right answers (VAPO eq. 9-10; 0.1 there)."""


class AlgorithmConfig(StrictModel):
    """Every slot of an algorithm; `name` is a label and switches nothing."""

    name: str = "tppo"
    """A label for tables and plots."""

    advantages: AdvantageConfig
    """How rewards and values become the policy's advantages."""

    value: ValueTargetConfig | None = None
    """The value model. None: critic-free."""

    ratio: RatioConfig = RatioConfig()
    """The importance ratio."""

    policy_loss: PolicyLossConfig = PolicyLossConfig()
    """The surrogate loss."""

    aggregate: Literal["token_mean", "sample_mean"] = "token_mean"
    """How token losses of the policy become one number."""

    penalties: PenaltyConfig = PenaltyConfig()
    """Terms added to the policy loss."""
