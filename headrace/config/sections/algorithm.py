"""An algorithm as data: each slot of `learner.algorithms.registry.Algorithm`."""

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class EgaeConfig(StrictModel):
    """Extended GAE on unfinished windows, GAE on finished ones (needs a value model)."""

    kind: Literal["egae"]

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount."""

    gae_lambda_policy: float = Field(default=0.95, ge=0, le=1)
    """Lambda of the policy's advantages; the floor of the length-adaptive lambda."""

    length_adaptive_alpha: float | None = Field(default=None, gt=0)
    """alpha of lambda = 1 - 1/(alpha * length) (VAPO eq. 5). None: a fixed lambda."""

    half_window_credit: bool = True
    """An unfinished trajectory counts half a window longer in the adaptive lambda (T-PPO)."""

    boundary: Literal["copy", "bootstrap", "terminal", "outcome"] = "copy"
    """V(s_l) at a cut: copy V(s_{l-1}) (T-PPO), ask the critic, 0 (for ablation), or (ours) the
    reward that came if the answer ended while the window waited, else copy."""

    boundary_mask: int = Field(default=0, ge=0)
    """Last tokens of an unfinished window left out of the policy loss (T-PPO recipe: 8)."""

    whiten: bool = True
    """Whiten over the batch's trained tokens."""

    whiten_by_act: bool = False
    """Whiten the turns of each act apart, such as answers and verdicts (PAG); the environment names
    acts. Goes with `turns = "turn"` and `whiten`."""

    clamp: float | None = Field(default=10.0, gt=0)
    """Bound of the advantage's absolute value. None: no bound."""


class GroupAdvantageConfig(StrictModel):
    """Critic-free advantages from the rewards of a group."""

    kind: Literal["group"]

    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    """Baseline that is subtracted from a reward."""

    scale: Literal["sample_std", "population_std", "none"] = "sample_std"
    """Divide by the group's standard deviation + 1e-6: of a sample (n - 1, as verl and DAPO), of a
    population (n), or not (Dr. GRPO, RLOO)."""

    whiten: bool = False
    """Whiten over the batch's trained tokens too (REINFORCE++)."""

    clamp: float | None = Field(default=None, gt=0)
    """Bound of the advantage's absolute value."""


AdvantageConfig = Annotated[EgaeConfig | GroupAdvantageConfig, Field(discriminator="kind")]


class ValueTargetConfig(StrictModel):
    """The value model: its targets and its loss."""

    fit: Literal["gradient", "least_squares"] = "gradient"
    """gradient: a trained copy of the policy, as published. least_squares (ours): a head solved in
    closed form every update on hidden states of a frozen copy and on the sampler's logprobs."""

    features: int = Field(default=512, ge=1, le=1024)
    """least_squares: hidden numbers that the head reads, projected at random where there are more.
    """

    memory_answers: float = Field(default=4096, gt=0)
    """least_squares: answers after which an earlier answer counts 1/e."""

    layers: int | None = Field(default=None, ge=1)
    """The first layers of the policy that the value model has (ours). None: all."""

    gae_lambda_value: float = Field(default=1.0, ge=0, le=1)
    """Lambda of the value target; 1 is the Monte-Carlo return."""

    value_clip_low: float | None = Field(default=None, gt=0)
    """Maximum distance of the clipped value below the old (T-PPO recipe: 0.5). None: no clip."""

    value_clip_high: float | None = Field(default=None, gt=0)
    """Maximum distance above it (T-PPO recipe: 0.6)."""

    aggregate: Literal["sample_mean", "token_mean"] = "sample_mean"
    """Aggregation of token losses into one number."""

    warmup_updates: int = Field(default=0, ge=0)
    """Updates that train the value model alone, on a fixed policy (VC-PPO)."""

    warmup_prompts: int | None = Field(default=None, ge=1)
    """The first warm-up update waits for all answers to this many prompts, the slow ones as well
    (VC-PPO's set of a fixed policy). None: for a batch of answers that ended."""

    warmup_epochs: int = Field(default=1, ge=1)
    """Passes over the value batch in a warm-up update."""

    warmup_explained_variance: float | None = Field(default=None, lt=1)
    """End the warm-up once the explained variance reaches this."""

    context: Literal["none", "anchor"] = "none"
    """Context of the value model alone. anchor: the answer to beat, with sources `pairwise`."""


class BehaviourRatioConfig(StrictModel):
    """Ratio to the sampler's logprobs, weight 1: plain PPO around whatever sampled the token."""

    kind: Literal["behaviour"]


class DecoupledRatioConfig(StrictModel):
    """Ratio to proximal logprobs, weighted by proximal over behaviour (decoupled PPO, AReaL)."""

    kind: Literal["decoupled"]

    proximal: Literal["recomputed", "interpolated"] = "recomputed"
    """recomputed: logprobs of the update's start. interpolated: between the sampler's and the
    learner's by age, without a forward pass (A-3PO)."""

    cap: float = Field(default=2.0, gt=0)
    """Maximum weight."""

    over_cap: Literal["clamp", "mask"] = "clamp"
    """Tokens over the cap are clamped or get weight 0."""


class TisRatioConfig(StrictModel):
    """Ratio to recomputed logprobs, weighted by these over the sampler's, truncated."""

    kind: Literal["tis"]

    level: Literal["token", "sequence"] = "token"
    """sequence: every token gets its response's product (needs whole responses)."""

    cap: float = Field(default=2.0, gt=0)
    """Maximum weight (usual: token 1.5 to 5, sequence 2 to 10)."""

    over_cap: Literal["clamp", "mask"] = "clamp"
    """clamp (TIS), or weight 0 over the cap (MIS)."""

    geometric_filter: tuple[float, float] | None = None
    """Leave out responses whose geometric mean weight lies outside, such as [0.999, 1.001] (needs
    whole responses). None: no filter."""


RatioConfig = Annotated[
    BehaviourRatioConfig | DecoupledRatioConfig | TisRatioConfig, Field(discriminator="kind")
]


class ClippedLossConfig(StrictModel):
    """PPO's clipped surrogate."""

    kind: Literal["clipped"]

    clip_ratio_low: float = Field(default=0.2, gt=0, lt=1)
    """epsilon below 1."""

    clip_ratio_high: float = Field(default=0.28, gt=0)
    """epsilon above 1 (clip-higher if larger)."""

    dual_clip: float | None = Field(default=10.0, gt=1)
    """Bound of the loss for negative advantages. None: no dual clip."""


class ReinforceLossConfig(StrictModel):
    """Plain policy gradient without clipping. Only a weighted ratio corrects for age."""

    kind: Literal["reinforce"]


class NoLossConfig(StrictModel):
    """No surrogate: rewards are measured and not learned from. On-policy distillation, where
    `algorithm.kl` alone trains."""

    kind: Literal["none"]


PolicyLossConfig = Annotated[
    ClippedLossConfig | ReinforceLossConfig | NoLossConfig, Field(discriminator="kind")
]


class KlConfig(StrictModel):
    """Divergence from a frozen model: the policy that the run began with, or a teacher."""

    coef: float = Field(gt=0)
    """Its weight."""

    estimator: Literal["k1", "k1+", "k2", "k3", "k3+"] | None = None
    """k1: log ratio. k2: half its square. k3: never negative. k1+, k3+: their value with k2's
    gradient, the divergence's own. None: k3+ in the loss, k1 in the reward, the only right one
    there."""

    reference_path: str | None = None
    """The frozen model, a folder with the policy's tokenizer: a teacher. None: `model.path`."""

    where: Literal["loss", "reward"] = "loss"
    """loss: a term of the policy's loss (GRPO). reward: taken from each token's reward, for
    advantages and value targets (REINFORCE++)."""

    @property
    def chosen_estimator(self) -> Literal["k1", "k1+", "k2", "k3", "k3+"]:
        """The estimator, or what stands for None."""
        return self.estimator or ("k3+" if self.where == "loss" else "k1")


class OverlongConfig(StrictModel):
    """Penalty of long responses (DAPO section 3.4); the verifier's own score stays as it is."""

    cache: int | None = Field(default=None, ge=1)
    """Tokens before max_response_length over which the penalty grows to -1. None: no penalty."""

    factor: float = Field(default=1.0, gt=0)
    """Multiplies the penalty."""

    filter: bool = False
    """Leave responses that met the length limit out of the policy loss."""


class PenaltyConfig(StrictModel):
    """Terms added to the policy loss."""

    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""

    positive_nll_coef: float = Field(default=0.0, ge=0)
    """Weight of the likelihood of right answers, over all their tokens (VAPO eq. 9-10: 0.1)."""


class AlgorithmConfig(StrictModel):
    """Every slot of an algorithm; `name` is a label and switches nothing."""

    name: str = "tppo"
    """A label for tables and plots."""

    advantages: AdvantageConfig
    """The policy's advantages, from rewards and values."""

    value: ValueTargetConfig | None = None
    """The value model. None: critic-free."""

    turns: Literal["episode", "turn"] = "episode"
    """Credit over turns. episode: over all sampled tokens. turn: each turn is an answer (PAG)."""

    admit: Literal["all", "mixed_groups"] = "all"
    """mixed_groups: drop groups with equal scores, before shaping, and issue others (DAPO). A
    stream's windows train as soon as two ended answers of their group differ."""

    overlong: OverlongConfig | None = None
    """Penalty of long responses. None: none."""

    ratio: RatioConfig = BehaviourRatioConfig(kind="behaviour")
    """The importance ratio."""

    policy_loss: PolicyLossConfig = ClippedLossConfig(kind="clipped")
    """The surrogate loss."""

    aggregate: Literal["token_mean", "sample_mean", "fixed_length"] = "token_mean"
    """Mean over the batch's tokens; over samples of the mean over their tokens; over samples of the
    sum divided by max_response_length (Dr. GRPO)."""

    penalties: PenaltyConfig = PenaltyConfig()
    """Terms added to the policy loss."""

    kl: KlConfig | None = None
    """Divergence from a reference. None: not asked for."""

    @property
    def fits_value(self) -> bool:
        """Return whether the value model is fitted, and not trained by gradient."""
        return self.value is not None and self.value.fit == "least_squares"
