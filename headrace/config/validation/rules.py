"""Rules of a configuration: contradictory values, and what to change.

In: a configuration. Out: `RULES`, one for each contradiction: a key, when its value is wrong, and
what to say. They are facts about the values alone; what a machine must have is in
`headrace.config.preflight.checks`.
"""

from collections.abc import Callable
from typing import NamedTuple

from headrace.config.sections.algorithm import (
    EgaeConfig,
    GroupAdvantageConfig,
    NoLossConfig,
    TisRatioConfig,
)
from headrace.config.sections.run import RunConfig
from headrace.protocol.messages.batches import longest_part_bytes


class Rule(NamedTuple):
    """A combination of values that cannot work."""

    key: str
    broken: Callable[[RunConfig], bool]
    advice: str
    """A format string with the configuration as `c`."""


def _group(config: RunConfig) -> GroupAdvantageConfig | None:
    advantages = config.algorithm.advantages
    return advantages if isinstance(advantages, GroupAdvantageConfig) else None


def _egae(config: RunConfig) -> EgaeConfig | None:
    advantages = config.algorithm.advantages
    return advantages if isinstance(advantages, EgaeConfig) else None


def _needs_group(config: RunConfig) -> bool:
    group = _group(config)
    return group is not None and group.baseline in ("mean", "leave_one_out")


def _lambda_stays(config: RunConfig) -> bool:
    """Return whether the adaptive lambda is at its floor for every possible length."""
    egae = _egae(config)
    if egae is None or egae.length_adaptive_alpha is None:
        return False
    longest = config.task.max_response_length
    return egae.gae_lambda_policy >= 1.0 - 1.0 / (egae.length_adaptive_alpha * longest)


def _by_turn(config: RunConfig) -> bool:
    return config.environment is not None and not config.schedule.across_turns


def _cuts_responses(config: RunConfig) -> bool:
    """Return whether a response can have several windows: of its turns, or by their size."""
    return _by_turn(config) or config.window < config.task.max_response_length


def _tis(config: RunConfig) -> TisRatioConfig | None:
    ratio = config.algorithm.ratio
    return ratio if isinstance(ratio, TisRatioConfig) else None


def _too_long_for_a_message(config: RunConfig) -> bool:
    """Return whether one answer, with all data of its tokens, can exceed a message."""
    longest = longest_part_bytes(
        opening=config.task.max_prompt_length,
        length=config.longest - config.task.max_prompt_length,
        window=config.window,
        members=config.schedule.num_generations,
        aside=config.anchor_tokens,
        turns=config.environment.max_turns if config.environment else 0,
        images=config.task.max_images,
    )
    return longest > config.transport.max_message_mib * 2**20


# Which tokens are left out depends on the sampler's weights, older than the learner's, and no
# message says it. With the learner's own choice instead, a sampled token could lie outside of it.
_LEFT_OUT = (
    "the sampler's logprobs are renormalised over the tokens that it keeps, the learner's are not, "
    "so every ratio between them would be biased; use "
)

RULES: tuple[Rule, ...] = (
    Rule(
        "schedule.window",
        lambda c: c.window > c.task.max_response_length,
        "{c.window} is longer than task.max_response_length = {c.task.max_response_length}; choose "
        "a divisor of it, or leave it out for whole responses",
    ),
    Rule(
        "schedule.window",
        lambda c: c.task.max_response_length % c.window != 0,
        "{c.window} does not divide task.max_response_length = {c.task.max_response_length}; the "
        "last window would be cut short",
    ),
    Rule(
        "schedule.max_in_play",
        lambda c: c.schedule.mode == "streaming"
        and c.schedule.max_in_play is not None
        and c.schedule.max_in_play < c.schedule.batch_windows + c.schedule.num_generations,
        "{c.schedule.max_in_play} leaves no room beside a batch of {c.schedule.batch_windows} "
        "windows; use more, or leave it out",
    ),
    Rule(
        "schedule.mode",
        lambda c: c.schedule.mode != "streaming"
        and (c.schedule.stale == "wait" or c.schedule.warm_start == "full"),
        '"{c.schedule.mode}" ignores schedule.stale = "wait" and warm_start = "full": leave it out',
    ),
    Rule(
        "learner.publish_min_interval_s",
        lambda c: c.learner.publish_min_interval_s > 0 and not c.schedule.publishes_behind,
        "goes with streams of some staleness: a round wants the newest version, so leave it out",
    ),
    Rule(
        "schedule.num_generations",
        lambda c: c.schedule.mode == "streaming"
        and c.schedule.num_generations > c.schedule.bound,
        "{c.schedule.num_generations} of a prompt never begin, for at most {c.schedule.bound} "
        "windows are in play; use fewer, or a larger schedule.batch_windows or "
        "schedule.max_staleness",
    ),
    Rule(
        "schedule.value_batch_tokens",
        lambda c: c.schedule.value_batch_tokens is not None and c.algorithm.value is None,
        "makes batches for a value model, and this algorithm has none; leave it out, or add "
        "[algorithm.value]",
    ),
    Rule(
        "algorithm.advantages.boundary_mask",
        lambda c: (egae := _egae(c)) is not None
        and egae.boundary_mask > 0
        and (egae.boundary_mask >= c.window or (c.algorithm.turns == "episode" and _by_turn(c))),
        "{c.algorithm.advantages.boundary_mask} leaves nothing of a window of {c.window} tokens, "
        "or no end of a turn where across_turns = false; use less, or leave it out",
    ),
    Rule(
        "algorithm.advantages.boundary",
        lambda c: (egae := _egae(c)) is not None
        and egae.boundary == "outcome"
        and (
            egae.gamma < 1
            or c.algorithm.turns == "turn"
            or ((kl := c.algorithm.kl) is not None and kl.where == "reward")
        ),
        '"outcome" wants gamma = 1, algorithm.turns = "episode" and no divergence in the reward',
    ),
    Rule(
        "learner.ranker",
        lambda c: c.learner.ranker is not None
        and [s.kind for s in c.reward.each().values()].count("ranker") != 1,
        'trains the ranker of a reward along; name one source with kind = "ranker"',
    ),
    Rule(
        "learner.ranker",
        lambda c: c.learner.ranker is not None
        and (source := c.reward.ranker()) is not None
        and source.options.get("answer", "query") != "query",
        'learns from answers that are queries; leave it out with options.answer = "order"',
    ),
    Rule(
        "reward.unit",
        lambda c: c.learner.ranker is not None
        and not c.evaluation.only
        and (
            c.schedule.num_generations > 1
            or (c.evaluation.mode == "along" and c.evaluation.samples > 1)
        )
        and any(s.kind == "ranker" and s.unit != "group" for s in c.reward.each().values()),
        '"trajectory" lets several versions of a ranker score one group; use "group"',
    ),
    Rule(
        "reward.unit",
        lambda c: c.schedule.mode != "streaming"
        and c.schedule.num_generations > 1
        and _cuts_responses(c)
        and any(source.unit == "group" for source in c.reward.each().values()),
        '"group" scores an answer when its siblings have ended, and a round of cut ones waits for '
        'scores: use schedule.mode = "streaming", or whole responses',
    ),
    Rule(
        "environment.max_context",
        lambda c: c.environment is not None
        and c.environment.max_context is not None
        and c.environment.max_context <= c.task.max_prompt_length,
        "{c.environment.max_context} leaves nothing behind a prompt of task.max_prompt_length = "
        "{c.task.max_prompt_length}; use more",
    ),
    Rule(
        "environment.rewritten",
        lambda c: c.environment is not None
        and c.environment.rewritten == "branch"
        and not (
            c.environment.is_agent
            and not c.environment.scored
            and c.schedule.mode == "streaming"
            and c.schedule.num_generations == 1
            and not _cuts_responses(c)
        ),
        '"branch" is for agents that pay themselves, in a stream whose windows hold whole answers '
        '(schedule.window, across_turns), with schedule.num_generations = 1; use "fail"',
    ),
    Rule(
        "algorithm.turns",
        lambda c: c.algorithm.turns == "turn" and c.environment is None,
        "ends credit with a turn, and without an environment there is one turn; leave it out",
    ),
    Rule(
        "algorithm.turns",
        lambda c: c.algorithm.turns == "turn" and _group(c) is not None,
        "does not go with advantages by group: turns of siblings do not correspond",
    ),
    Rule(
        "algorithm.advantages.whiten_by_act",
        lambda c: (egae := _egae(c)) is not None
        and egae.whiten_by_act
        and not (egae.whiten and c.algorithm.turns == "turn"),
        'goes together with algorithm.turns = "turn" and whiten = true',
    ),
    Rule(
        "algorithm.penalties.positive_nll_coef",
        lambda c: c.algorithm.turns == "turn" and c.algorithm.penalties.positive_nll_coef != 0,
        "would imitate all turns of an episode that ended well, wrong ones too; leave it out where "
        'algorithm.turns = "turn"',
    ),
    Rule(
        "generator.chunk_tokens",
        lambda c: c.chunk_tokens > c.window,
        "{c.chunk_tokens} is longer than a window of {c.window} tokens",
    ),
    Rule(
        "generator.fire.top_k",
        lambda c: (fire := c.generator.fire) is not None and fire.top_k in (0, 1),
        "{c.generator.fire.top_k} leaves the first token no choice, so that it would not be hot; "
        "use 2 or more, or -1 for all tokens",
    ),
    Rule(
        "generator.fire.temperature",
        lambda c: (fire := c.generator.fire) is not None
        and fire.temperature <= c.generator.temperature,
        "{c.generator.fire.temperature:g} is no hotter than generator.temperature = "
        "{c.generator.temperature:g}; use a higher one (30 is usual), or leave [generator.fire] "
        "out",
    ),
    Rule(
        "generator.top_p",
        lambda c: c.generator.top_p < 1.0 and not c.evaluation.only,
        "{c.generator.top_p:g}: " + _LEFT_OUT + "1 (evaluation.top_p may be less)",
    ),
    Rule(
        "generator.top_k",
        lambda c: c.generator.top_k > 0 and not c.evaluation.only,
        "{c.generator.top_k}: " + _LEFT_OUT + "-1 (evaluation.top_p may narrow evaluations)",
    ),
    Rule(
        "algorithm.value",
        lambda c: _egae(c) is not None and c.algorithm.value is None,
        'missing: advantages of kind "egae" come from a value model; add [algorithm.value], or use '
        'algorithm.advantages.kind = "group"',
    ),
    Rule(
        "algorithm.value",
        lambda c: _group(c) is not None and c.algorithm.value is not None,
        'advantages of kind "group" use no value model; leave [algorithm.value] and overrides '
        'of its keys out (or set it to "null")',
    ),
    Rule(
        "schedule.unit",
        lambda c: _group(c) is not None and c.schedule.unit == "window",
        '"window" does not go with advantages of kind "group": the reward of an unfinished '
        'trajectory is not known; use "group" or "trajectory"',
    ),
    Rule(
        "schedule.unit",
        lambda c: _needs_group(c) and c.schedule.unit == "trajectory",
        '"trajectory" tears groups apart: a baseline of the group needs "group", or use '
        'algorithm.advantages.baseline = "none"',
    ),
    Rule(
        "schedule.unit",
        lambda c: c.schedule.unit != "window" and _cuts_responses(c),
        '"{c.schedule.unit}" goes with whole responses, and schedule.window = {c.window} cuts them '
        "at {c.window} of {c.task.max_response_length} tokens, or across_turns = false at their "
        'turns: use "window", or leave these out',
    ),
    Rule(
        "schedule.unit",
        lambda c: _egae(c) is not None
        and c.schedule.unit == "group"
        and c.algorithm.admit == "all",
        '"group" makes a critic wait for whole groups that it does not look at; use "window" '
        "(num_generations may stay), or choose among groups with algorithm.admit = "
        '"mixed_groups"',
    ),
    Rule(
        "algorithm.admit",
        lambda c: c.algorithm.admit != "all" and c.schedule.num_generations < 2,
        '"{c.algorithm.admit}" needs groups: a single response is never mixed; use '
        "schedule.num_generations of 2 or more",
    ),
    Rule(
        "algorithm.admit",
        lambda c: c.algorithm.admit == "mixed_groups"
        and c.schedule.unit != "group"
        and c.schedule.mode != "streaming",
        '"mixed_groups" judges complete groups in rounds; use schedule.unit = "group"',
    ),
    Rule(
        "algorithm.advantages.scale",
        lambda c: (group := _group(c)) is not None
        and group.baseline == "none"
        and group.scale != "none",
        '"{c.algorithm.advantages.scale}" divides by a spread around a baseline that is not '
        'taken away; use "none" (and whiten = true to scale over the batch)',
    ),
    Rule(
        "algorithm.advantages.length_adaptive_alpha",
        _lambda_stays,
        "{c.algorithm.advantages.length_adaptive_alpha:g} keeps lambda at its floor "
        "gae_lambda_policy = {c.algorithm.advantages.gae_lambda_policy:g} for every length up to "
        "max_response_length = {c.task.max_response_length}: use a larger alpha, a lower floor, "
        "or leave it out",
    ),
    Rule(
        "algorithm.ratio",
        lambda c: (tis := _tis(c)) is not None
        and (tis.level == "sequence" or tis.geometric_filter is not None)
        and _cuts_responses(c),
        'judges whole responses by level = "sequence" and geometric_filter, and windows of '
        "{c.window} tokens are parts of one, as turns are with across_turns = false; leave these "
        "out",
    ),
    Rule(
        "algorithm.ratio.geometric_filter",
        lambda c: (tis := _tis(c)) is not None
        and tis.geometric_filter is not None
        and not 0 < tis.geometric_filter[0] <= 1 <= tis.geometric_filter[1],
        "should be [low, high] with 0 < low <= 1 <= high, for example [0.999, 1.001]",
    ),
    Rule(
        "algorithm.kl.estimator",
        lambda c: (kl := c.algorithm.kl) is not None
        and kl.where == "loss"
        and kl.estimator == "k1",
        '"k1" as a loss has a gradient of 0 on average; use "k1+" or "k3+", or algorithm.kl.where '
        '= "reward"',
    ),
    Rule(
        "algorithm.kl.estimator",
        lambda c: (kl := c.algorithm.kl) is not None
        and kl.where == "reward"
        and kl.chosen_estimator != "k1",
        '"{c.algorithm.kl.estimator}" in the reward does not lead towards the reference, only "k1" '
        'does; use that, or algorithm.kl.where = "loss"',
    ),
    Rule(
        "algorithm.policy_loss.kind",
        lambda c: isinstance(c.algorithm.policy_loss, NoLossConfig)
        and ((kl := c.algorithm.kl) is None or kl.where == "reward"),
        '"none" trains by a divergence in the loss alone: add [algorithm.kl] with a reference_path',
    ),
    Rule(
        "algorithm.kl.where",
        lambda c: (kl := c.algorithm.kl) is not None
        and kl.where == "reward"
        and c.generator.fire is not None,
        '"reward" takes the divergence from what sampled a token, and a first token drawn hot is '
        'not from the policy; use "loss", or leave generator.fire out',
    ),
    Rule(
        "reward.kl_coefficient",
        lambda c: c.algorithm.kl is None
        and any(source.kl_coefficient is not None for source in c.reward.each().values()),
        "is the weight of a divergence that nobody computes: add [algorithm.kl], whose coef holds "
        "for the other sources",
    ),
    Rule(
        "algorithm.overlong.cache",
        lambda c: (long := c.algorithm.overlong) is not None
        and long.cache is not None
        and long.cache > c.task.max_response_length,
        "{c.algorithm.overlong.cache} is longer than task.max_response_length = "
        "{c.task.max_response_length}; the penalty grows over the last so many tokens of it",
    ),
    Rule(
        "algorithm.overlong.cache",
        lambda c: c.algorithm.turns == "turn" and bool((o := c.algorithm.overlong) and o.cache),
        'holds a turn against the limit of all turns; with algorithm.turns = "turn" leave it out',
    ),
    Rule(
        "algorithm.overlong",
        lambda c: (long := c.algorithm.overlong) is not None
        and long.cache is None
        and not long.filter,
        "does nothing without cache or filter = true; set one, or leave the section out",
    ),
    Rule(
        "model.critic_path",
        lambda c: c.model.critic_path is not None and c.algorithm.value is None,
        "names a value model, and this algorithm has none; leave it out, or add [algorithm.value]",
    ),
    Rule(
        "algorithm.value.context",
        lambda c: c.anchor_tokens > 0
        and all(source.kind != "pairwise" for source in c.reward.each().values()),
        '"anchor" is for rewards of the kind "pairwise", and there are none',
    ),
    Rule(
        "algorithm.value.warmup_updates",
        lambda c: (value := c.algorithm.value) is not None
        and not value.warmup_updates
        and (value.warmup_prompts, value.warmup_explained_variance) != (None, None),
        "is 0, and warmup_explained_variance ends a warm-up early, warmup_prompts is the set of "
        "its first update: set it to the most updates",
    ),
    Rule(
        "algorithm.value.gae_lambda_value",
        lambda c: (value := c.algorithm.value) is not None
        and c.algorithm.fits_value
        and value.gae_lambda_value < 1,
        'is 1 for fit = "least_squares", which fits returns',
    ),
    Rule(
        "stop.after_warmup",
        lambda c: c.stop.after_warmup
        and (c.algorithm.fits_value or not (v := c.algorithm.value) or not v.warmup_updates),
        'needs a warm-up of a value model of fit = "gradient": set algorithm.value.warmup_updates',
    ),
    Rule(
        "schedule.num_generations",
        lambda c: _needs_group(c) and c.schedule.num_generations < 2,
        "1 leaves no group to compare with; use 2 or more, or algorithm.advantages.baseline = "
        '"none"',
    ),
    Rule(
        "schedule.batch_windows",
        lambda c: (_needs_group(c) or c.schedule.unit == "group")
        and c.schedule.batch_windows % c.schedule.num_generations != 0,
        "{c.schedule.batch_windows} is no multiple of schedule.num_generations = "
        "{c.schedule.num_generations}, so groups would be torn",
    ),
    Rule(
        "stop.accuracy",
        lambda c: c.stop.accuracy is not None
        and (c.evaluation.every_updates is None or c.evaluation.mode == "along"),
        'needs evaluation.every_updates, and evaluation.mode = "exact"',
    ),
    Rule(
        "evaluation.mode",
        lambda c: c.evaluation.mode == "along"
        and (c.schedule.mode != "streaming" or c.evaluation.every_updates is None),
        '"along" is for the evaluations of evaluation.every_updates in a stream, and there are '
        'none; use "exact"',
    ),
    Rule(
        "evaluation.spacing",
        lambda c: c.evaluation.spacing > 0
        and (c.evaluation.every_updates is None or c.evaluation.mode == "along"),
        "leaves out some of the exact evaluations of evaluation.every_updates, and there are none",
    ),
    Rule(
        "evaluation.spacing_from_s",
        lambda c: c.evaluation.spacing_from_s > 0 and not c.evaluation.spacing,
        "is the time from which evaluation.spacing counts, which is 0",
    ),
    Rule(
        "generator.batch_invariant",
        lambda c: c.generator.batch_invariant and c.generator.engine != "torch",
        'needs generator.engine = "torch"; vLLM has a mode of its own for some GPUs (environment '
        "variable VLLM_BATCH_INVARIANT)",
    ),
    Rule(
        "learner.context",
        lambda c: c.learner.context == "carried" and c.prefix_is_fresh,
        '"carried" goes with generators that keep keys and values as weights change; here they '
        "compute each prefix again with new weights (schedule.mode, schedule.max_staleness = 0 or "
        'generator.kv_on_update): use "frozen", which costs less than "full", or stream with '
        'generator.kv_on_update = "keep"',
    ),
    Rule(
        "learner.carried_on_device_gib",
        lambda c: c.learner.carried_on_device_gib > c.learner.carried_gib,
        "{c.learner.carried_on_device_gib:g} is part of learner.carried_gib = "
        "{c.learner.carried_gib:g}; use less of the one or more of the other",
    ),
    Rule(
        "learner.offload_optimizer",
        lambda c: c.learner.offload_optimizer and not c.learner.zero_stage,
        "needs learner.zero_stage of 1 or more",
    ),
    Rule(
        "learner.compile",
        lambda c: bool(c.learner.compile) and c.learner.zero_stage == 3,
        "does not go with learner.zero_stage = 3, which gathers weights inside layers",
    ),
    Rule(
        "learner.lora",
        lambda c: c.learner.lora is not None and c.learner.zero_stage == 3,
        "shares one base model, which learner.zero_stage = 3 would cut up: use 2 or less",
    ),
    Rule(
        "learner.lora.publish",
        lambda c: c.learner.published_adapter is not None and c.generator.engine == "torch",
        'is "merged" where generator.engine is not "vllm"',
    ),
    Rule(
        "generator.quantization",
        lambda c: c.generator.quantization is not None and c.generator.engine != "vllm",
        'is for generator.engine = "vllm"',
    ),
    Rule(
        "generator.weights",
        lambda c: c.generator.weights == "broadcast"
        and (c.generator.engine != "vllm" or c.learner.published_adapter is not None),
        'is "file" where generator.engine is not "vllm", and where vLLM loads an adapter',
    ),
    Rule(
        "learner.lora.rank",
        lambda c: (own := c.learner.published_adapter) is not None and own.rank > 512,
        'is at most 512 where vLLM loads adapters: learner.lora.publish = "merged" has no limit',
    ),
    Rule(
        "learner.lora",
        lambda c: c.learner.lora is not None and not c.model.freeze_vision,
        "has adapters for the decoder alone: set model.freeze_vision = true",
    ),
    Rule(
        "reward.process.source",
        lambda c: c.reward.process.source is not None and _group(c) is not None,
        "advantages by group see the score of a whole answer alone, so lines would earn nothing: "
        'use algorithm.advantages.kind = "egae", which has a critic',
    ),
    Rule(
        "transport.max_message_mib",
        _too_long_for_a_message,
        "{c.transport.max_message_mib:g} has no room for one answer with task.max_prompt_length = "
        "{c.task.max_prompt_length} and task.max_response_length = {c.task.max_response_length}, "
        "which may take 250 bytes a token: use more, or shorter answers",
    ),
    Rule(
        "transport.heartbeat_timeout_s",
        lambda c: c.transport.heartbeat_timeout_s < 3 * c.transport.heartbeat_s,
        "{c.transport.heartbeat_timeout_s:g} should be at least three heartbeats of "
        "{c.transport.heartbeat_s:g} s",
    ),
    Rule(
        "evaluation.before",
        lambda c: c.evaluation.only and not c.evaluation.before,
        "must be true with evaluation.only",
    ),
)  # fmt: skip
