"""Checks across sections, and of what a configuration needs from the machine.

`RULES` are facts about the values alone: one line each, a key, when it is wrong, and what to say.
`check_machine` looks at folders, files, ports and memory. Both raise UserError with one line.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from headrace.config.algorithm import EgaeConfig, GroupAdvantageConfig, TisRatioConfig
from headrace.config.memory import ModelShape, gpu_memory, host_memory, model_shape
from headrace.config.run import RunConfig
from headrace.config.task import DatasetConfig
from headrace.errors import UserError
from headrace.hardware import Hardware, port_is_free

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


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
    """The length-adaptive lambda is at its floor for every length that there can be."""
    egae = _egae(config)
    if egae is None or egae.length_adaptive_alpha is None:
        return False
    longest = config.task.max_response_length
    return egae.gae_lambda_policy >= 1.0 - 1.0 / (egae.length_adaptive_alpha * longest)


def _cuts_responses(config: RunConfig) -> bool:
    return config.window < config.task.max_response_length


def _tis(config: RunConfig) -> TisRatioConfig | None:
    ratio = config.algorithm.ratio
    return ratio if isinstance(ratio, TisRatioConfig) else None


def _warmup(config: RunConfig) -> int:
    value = config.algorithm.value
    return value.warmup_updates if value is not None else 0


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
        "algorithm.advantages.boundary_mask",
        lambda c: (egae := _egae(c)) is not None and egae.boundary_mask >= c.window,
        "{c.algorithm.advantages.boundary_mask} leaves nothing of a window of {c.window} tokens",
    ),
    Rule(
        "generator.chunk_tokens",
        lambda c: c.chunk_tokens > c.window,
        "{c.chunk_tokens} is longer than a window of {c.window} tokens",
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
        'advantages of kind "group" use no value model; remove [algorithm.value] (or set it to '
        '"null")',
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
        'at {c.window} of {c.task.max_response_length} tokens: use "window", or leave '
        "schedule.window out",
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
        lambda c: c.algorithm.admit == "mixed_groups" and c.schedule.num_generations < 2,
        '"mixed_groups" needs groups: a single response is never mixed; use '
        "schedule.num_generations of 2 or more",
    ),
    Rule(
        "algorithm.admit",
        lambda c: c.algorithm.admit == "mixed_groups" and c.schedule.unit != "group",
        '"mixed_groups" judges complete groups; use schedule.unit = "group"',
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
        "algorithm.ratio.level",
        lambda c: (tis := _tis(c)) is not None and tis.level == "sequence" and _cuts_responses(c),
        '"sequence" is the weight of a whole response, and windows of {c.window} tokens are parts '
        'of one; use "token", or leave schedule.window out',
    ),
    Rule(
        "algorithm.ratio.geometric_filter",
        lambda c: (tis := _tis(c)) is not None
        and tis.geometric_filter is not None
        and _cuts_responses(c),
        "judges whole responses, and windows of {c.window} tokens are parts of one; leave it out, "
        "or leave schedule.window out",
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
        '"k1" as a loss has a gradient of 0 on average; use "k2" or "k3", or algorithm.kl.where = '
        '"reward"',
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
        "algorithm.value.warmup_explained_variance",
        lambda c: (value := c.algorithm.value) is not None
        and value.warmup_explained_variance is not None
        and not value.warmup_updates,
        "ends a warm-up early, and there is none: set algorithm.value.warmup_updates to its most "
        "updates",
    ),
    Rule(
        "stop.after_warmup",
        lambda c: c.stop.after_warmup and not _warmup(c),
        "needs a warm-up of a value model: set algorithm.value.warmup_updates",
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
        lambda c: c.stop.accuracy is not None and c.evaluation.every_updates is None,
        "needs evaluation.every_updates",
    ),
    Rule(
        "learner.offload_optimizer",
        lambda c: c.learner.offload_optimizer and c.learner.zero_stage == 0,
        "needs learner.zero_stage of 1 or more",
    ),
    Rule(
        "reward.function",
        lambda c: (c.reward.kind == "function") != (c.reward.function is not None),
        'goes together with reward.kind = "function"',
    ),
    Rule(
        "transport.curve_keys",
        lambda c: not _loopback(c.transport.host) and c.transport.curve_keys is None,
        "missing: {c.transport.host} can be reached from other machines; make keys with `headrace "
        "keys DIR` and name the folder here",
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


def _loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def problems(config: RunConfig) -> list[str]:
    """One line for every rule that a configuration breaks."""
    return [f"{rule.key}: {rule.advice.format(c=config)}" for rule in RULES if rule.broken(config)]


def check_recipe(config: RunConfig) -> None:
    """UserError for the first broken rule, and how many more there are."""
    found = problems(config)
    if found:
        more = f" (and {len(found) - 1} more; see `headrace config check`)" if found[1:] else ""
        raise UserError(found[0] + more)


def never_ends(config: RunConfig) -> bool:
    """Whether a run goes on until somebody stops it."""
    stop = config.stop
    limits = (stop.updates, stop.train_time_s, stop.tokens, stop.accuracy, stop.after_warmup)
    return not config.evaluation.only and not any(limits)


def check_machine(config: RunConfig, hardware: Hardware) -> None:
    """UserError where a folder, file, port or the memory that a run needs is not there."""
    shape = check_model(config)
    check_dataset(config)
    _check_ports(config)
    _check_memory(config, hardware, shape)


def check_model(config: RunConfig) -> ModelShape:
    """The shape of the policy in its folder; UserError where there is none."""
    paths = {"model.path": config.model.path, "model.critic_path": config.model.critic_path}
    for key, path in paths.items():
        if path is None:
            continue
        folder = Path(path)
        if not folder.is_dir():
            raise UserError(
                f"{key} = {path!r}: no such model folder (looked beside the recipe and in the "
                "working directory)"
            )
        if not (folder / "config.json").is_file():
            raise UserError(f"{key} = {path!r}: no config.json in it, so not a model folder")
        if not any(folder.glob("*.safetensors")):
            raise UserError(f"{key} = {path!r}: no *.safetensors weights in it")
    if not any((Path(config.model.path) / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(f"model.path = {config.model.path!r}: no tokenizer in it")
    try:
        return model_shape(Path(config.model.path))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"model.path = {config.model.path!r}: cannot read it: {error}") from error


def check_dataset(config: RunConfig) -> None:
    """UserError where a dataset file is missing."""
    task = config.task
    if not isinstance(task, DatasetConfig):
        return
    for key, path in (("task.path", task.path), ("task.eval_path", task.eval_path)):
        if path is not None and not Path(path).exists():
            raise UserError(
                f"{key} = {path!r}: no such file (looked beside the recipe and in the working "
                "directory)"
            )


def _check_ports(config: RunConfig) -> None:
    wanted = [("transport", config.transport.host, config.transport.port)]
    if config.dashboard.enabled:
        wanted.append(("dashboard", config.dashboard.host, config.dashboard.port))
    for section, host, port in wanted:
        if port and not port_is_free(host, port):
            other = " or leave the page out with --no-dashboard" if section == "dashboard" else ""
            raise UserError(
                f"{section}.port = {port} is in use on {host}; choose another with "
                f"{section}.port=PORT (0 takes a free one){other}"
            )


def _check_memory(config: RunConfig, hardware: Hardware, shape: ModelShape) -> None:
    gib = 2**30
    on_gpu = bool(hardware.gpus)
    need = host_memory(config, shape, on_gpu=on_gpu)
    if need.total > hardware.available_bytes:
        raise UserError(
            f"not enough memory: this recipe needs about {need.total / gib:.1f} GiB "
            f"({need.text()}), {hardware.available_bytes / gib:.1f} GiB are free; lower "
            "generator.kv_cache_gib, learner.micro_batch_tokens or the size of the model"
        )
    if on_gpu and config.learner.device != "cpu" and not config.evaluation.only:
        room = min(gpu.memory_bytes for gpu in hardware.gpus)
        width = config.generator.tensor_parallel_size * config.generator.count
        if len(hardware.gpus) < config.learner.ranks + width:
            room = int(room * (1 - config.generator.gpu_memory_utilization))
        gpu = gpu_memory(config, shape)
        if gpu.total > room:
            raise UserError(
                f"not enough GPU memory: a learner rank needs about {gpu.total / gib:.1f} GiB "
                f"({gpu.text()}), {room / gib:.1f} GiB are left beside the generators; lower "
                "generator.gpu_memory_utilization or learner.micro_batch_tokens, or raise "
                "learner.zero_stage"
            )
