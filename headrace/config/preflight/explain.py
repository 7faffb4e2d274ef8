"""Explanation of a recipe in numbers, before anything starts.

In: a configuration (and the model's shape and the machine, where known). Out: `Fact`s: a name, a
value with its unit, and where it comes from. Nothing is measured; everything is arithmetic.
"""

from typing import NamedTuple

from headrace.config.estimates.activations import (
    policy_activations,
    policy_packs,
    value_activations,
    value_packs,
)
from headrace.config.estimates.memory import (
    DTYPE_BYTES,
    KEPT_VERSIONS,
    carried_bytes,
    checkpoint_bytes,
    gpu_memory,
    host_memory,
    published_bytes,
    wanted_shared_memory,
)
from headrace.config.estimates.model_shape import ModelShape
from headrace.config.preflight.checks import ignores_age, never_ends
from headrace.config.sections.algorithm import EgaeConfig, GroupAdvantageConfig
from headrace.config.sections.run import RunConfig
from headrace.config.sections.task import MixtureConfig
from headrace.host.hardware import GIB, MIB, Hardware


class Fact(NamedTuple):
    """One derived number."""

    name: str
    value: float | str
    unit: str
    meaning: str


def prefix_cost(length: int, window: int) -> float:
    """Learner tokens per trained token of one response: each window is computed with its prefix.

    The sum of window ends over the length, about L / 2W for L much longer than W; 1 for one window.
    """
    return sum([*range(window, length, window), length]) / length


def facts(config: RunConfig) -> list[Fact]:
    """Batch arithmetic, windows, staleness and lambda of a recipe."""
    schedule, length, window = config.schedule, config.task.max_response_length, config.window
    windows, policy = -(-length // window), config.learner.policy
    units = schedule.batch_windows
    unit_tokens = window if schedule.unit == "window" else length
    found = [
        Fact("window", window, "tokens", "most tokens of a trajectory trained in one update"),
        Fact("windows per trajectory", windows, "windows", "of the longest response"),
        Fact("updates spanned", windows, "updates", "at least, by the longest trajectory"),
        Fact("tokens per update", units * unit_tokens, "tokens", "at most, of the policy"),
        Fact("groups per update", round(units / schedule.num_generations, 2), "groups",
             "batch_windows / num_generations, if every response fits one window"),
        Fact("chunk", config.chunk_tokens, "tokens", "most tokens of one message"),
        _prefix_cost(config),
        Fact("optimizer steps per update", policy.epochs * policy.minibatches, "steps",
             "policy: epochs x minibatches"),
    ]  # fmt: skip
    if isinstance(config.task, MixtureConfig) and all(
        sum(point.weights.values()) > 0 for point in config.task.schedule
    ):
        found += _mixture(config.task)
    for part in (_staleness, _lambda, _groups, _overlong, _units):
        found += part(config)
    value = config.algorithm.value
    if value is not None and value.warmup_updates:
        meaning = "train the value model alone before the policy moves"
        if value.warmup_prompts is not None:
            meaning += f", the first on all answers to {value.warmup_prompts} prompts"
        found.append(Fact("value warm-up", value.warmup_updates, "updates", meaning))
    end = "never by itself: Ctrl-C or `headrace stop`" if never_ends(config) else _stops(config)
    found.append(Fact("ends", end, "", "the first condition that holds"))
    return found


def _mixture(task: MixtureConfig) -> list[Fact]:
    updates = [point.update for point in task.schedule] or [0]
    meaning = "share of each domain; linear up to the next point, after the last one it stays"
    return [
        Fact(
            f"mixture at update {update}",
            ", ".join(f"{name} {share:.0%}" for name, share in task.weights(update).items()),
            "",
            meaning,
        )
        for update in updates
    ]


def _prefix_cost(config: RunConfig) -> Fact:
    cost = prefix_cost(config.task.max_response_length, config.window)
    meaning = "of the longest response, prompts apart: about L / 2W"
    if config.learner.context == "carried":
        cost, meaning = 1.0, f"where keys and values are carried over; without: {cost:.3g}"
    return Fact("prefix cost", round(cost, 2), "learner tokens per trained token", meaning)


def _staleness(config: RunConfig) -> list[Fact]:
    schedule = config.schedule
    if schedule.mode != "streaming":
        return [
            Fact("staleness", 0, "updates", f"{schedule.mode}: generation waits for each update"),
            Fact("slots", schedule.batch_windows, "trajectories", "generated side by side"),
        ]
    bound = schedule.bound
    seats = config.generator.count * config.generator.seats
    found = [
        Fact("staleness bound", schedule.max_staleness, "updates", "sampling to training, at most"),
        Fact("back-pressure", bound, "windows",
             "open plus ready at most: (max_staleness + 1) x batch_windows, or max_in_play"),
        Fact("in flight", min(seats, bound), "trajectories",
             f"generators hold {seats}, the bound allows {bound}"),
    ]  # fmt: skip
    if ignores_age(config):
        meaning = "the loss has no ratio; algorithm.ratio.kind = tis weights tokens by their age"
        found.append(Fact("correction for age", "none", "", meaning))
    return found


def _lambda(config: RunConfig) -> list[Fact]:
    """Explain lambda at typical lengths, and the share of the final reward at the first token."""
    advantages = config.algorithm.advantages
    if not isinstance(advantages, EgaeConfig):
        return []
    alpha, floor = advantages.length_adaptive_alpha, advantages.gae_lambda_policy
    longest = config.task.max_response_length
    found = [Fact("lambda", floor, "", "fixed")] if alpha is None else []
    for length in sorted({max(1, longest // 16), max(1, longest // 4), longest}):
        lam = floor if alpha is None else max(floor, 1 - 1 / (alpha * length))
        if alpha is not None:
            meaning = "1 - 1 / (alpha x length), not below gae_lambda_policy"
            found.append(Fact(f"lambda at {length} tokens", round(lam, 4), "", meaning))
        reach = (advantages.gamma * lam) ** (length - 1)
        meaning = "of the final reward in the first advantage, one window, a critic of 0"
        found.append(Fact(f"reward after {length} tokens", float(f"{reach:.3g}"), "", meaning))
    if alpha is not None and advantages.half_window_credit and config.window < longest:
        so_far = config.window
        lam = max(floor, 1 - 1 / (alpha * (so_far + config.window // 2)))
        meaning = "an unfinished window counts half a window longer"
        found.append(Fact(f"lambda at {so_far}, unfinished", round(lam, 4), "", meaning))
    return found


def _groups(config: RunConfig) -> list[Fact]:
    schedule, advantages = config.schedule, config.algorithm.advantages
    found = []
    size = schedule.num_generations
    if isinstance(advantages, GroupAdvantageConfig) and advantages.baseline != "none" and size > 1:
        meaning = "of a right answer alone in its group, reward 1 against 0"
        found.append(Fact("largest advantage", round(_lone(advantages, size), 4), "", meaning))
    if config.algorithm.admit != "all":
        meaning = "groups of equal scores are dropped and others issued in their place"
        found.append(Fact("dynamic sampling", "mixed groups", "", meaning))
    return found


def _lone(advantages: GroupAdvantageConfig, size: int) -> float:
    """Return the advantage of the only response with reward 1, where all others have 0."""
    centred = 1.0 if advantages.baseline == "leave_one_out" else 1.0 - 1.0 / size
    squares = (size - 1) / size
    divisor = {"none": 0, "population_std": size, "sample_std": size - 1}[advantages.scale]
    return centred / float((squares / divisor) ** 0.5) if divisor else centred


def _overlong(config: RunConfig) -> list[Fact]:
    overlong, longest = config.algorithm.overlong, config.task.max_response_length
    if overlong is None or overlong.cache is None:
        return []
    meaning = f"grows to {-overlong.factor:g} at {longest} tokens"
    return [Fact("overlong penalty from", longest - overlong.cache, "tokens", meaning)]


def _units(config: RunConfig) -> list[Fact]:
    """Explain when group and line sources score, and what waits for their scores."""
    reward, cuts = config.reward, config.schedule.unit == "window"
    found = []
    for name, source in reward.each().items():
        if source.unit == "group":
            meaning = "scored together when all siblings have ended"
            if cuts:
                meaning += "; earlier windows are trained by then (schedule.unit)"
            found.append(Fact(f"source {name}", "groups", "", meaning))
    lines = reward.line_source()
    if lines is not None:
        waits = "a window waits" if cuts else "an answer waits"
        meaning = f"at most; {waits} for its lines' scores, then it is trained without"
        found.append(Fact(f"source {reward.process.source}", lines.timeout_s, "s", meaning))
    return found


def _stops(config: RunConfig) -> str:
    stop = config.stop
    parts = [
        f"{stop.updates} updates" if stop.updates else "",
        f"{stop.train_time_s:g} s of training" if stop.train_time_s else "",
        f"{stop.tokens:,} trained tokens" if stop.tokens else "",
        f"accuracy {stop.accuracy:g} twice" if stop.accuracy else "",
        "the end of the value model's warm-up" if stop.after_warmup else "",
    ]
    if config.evaluation.only:
        return "after the evaluation"
    return " or ".join(part for part in parts if part)


def memory_facts(config: RunConfig, shape: ModelShape, hardware: Hardware) -> list[Fact]:
    """The model's size, the memory of a run against what is free, and of the longest trajectory."""
    host = host_memory(config, shape, on_gpu=bool(hardware.gpus))
    on_gpu = bool(hardware.gpus) and config.learner.device != "cpu"
    found = [
        Fact("parameters", round(shape.parameters / 1e6, 3), "million", "of the policy"),
        Fact("memory", round(host.total / GIB, 2), "GiB", f"about: {host.text()}"),
        Fact("memory free", round(hardware.available_bytes / GIB, 2), "GiB", "on this machine"),
    ]
    if on_gpu:
        gpu = gpu_memory(config, shape)
        found.append(
            Fact("GPU memory", round(gpu.total / GIB, 2), "GiB", f"a learner rank: {gpu.text()}")
        )
    if config.generator.engine == "vllm":
        found.append(_kv_cache(config, shape, hardware))
    if wanted := carried_bytes(config, shape):
        held = min(1.0, config.learner.carried_gib * GIB / wanted)
        meaning = f"of a rank, for longest answers; learner.carried_gib holds {held:.2g} of it"
        found.append(Fact("carried keys", round(wanted / GIB, 2), "GiB", meaning))
    if not config.evaluation.only:
        found += [*_longest(config, shape, on_gpu=on_gpu), *_files(config, shape, hardware)]
    return found


def _files(config: RunConfig, shape: ModelShape, hardware: Hardware) -> list[Fact]:
    """Explain the room that published weights and checkpoints take."""
    version, shm = published_bytes(config, shape), hardware.shm_bytes or 0
    fit = shm > wanted_shared_memory(version)
    place = (
        "/dev/shm" if fit else "the run folder, which is slower: twice this is wanted in /dev/shm"
    )
    weights = f"of published weights, {KEPT_VERSIONS + 1} versions, in {place}"
    last = config.checkpoint.keep_last
    return [
        Fact("weights", round((KEPT_VERSIONS + 1) * version / GIB, 2), "GiB", weights),
        Fact(
            "checkpoint", round(checkpoint_bytes(config, shape) / GIB, 2), "GiB",
            f"about, on disk; the last {last} stay, and one more while it is written",
        ),
    ]  # fmt: skip


def _kv_cache(config: RunConfig, shape: ModelShape, hardware: Hardware) -> Fact:
    """Explain the longest trajectories that a generator's keys and values have room for."""
    own, width = config.generator, DTYPE_BYTES[config.generator.dtype]
    room = own.kv_cache_gib * GIB
    if hardware.gpus:
        card = own.tensor_parallel_size * hardware.gpus[-1].memory_bytes
        weights = shape.parameters * (1 if own.quantization else width)
        room = max(0.0, (own.gpu_memory_utilization or 0.0) * card - weights)
    held = int(room / (config.longest * shape.kv_bytes_per_token * width / 2))
    meaning = f"of a generator: about {held:,} trajectories of {config.longest:,} tokens"
    if held < own.seats:
        meaning += f"; with generator.max_num_seqs = {own.seats} of them vLLM computes some twice"
    return Fact("KV cache", round(room / GIB, 2), "GiB", meaning)


def _longest(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> list[Fact]:
    """Explain the longest trajectory's memory in an update, besides models and optimizers."""
    tokens, budget = config.longest, config.learner.micro_batch_tokens
    alone = f"goes through a model by itself: over learner.micro_batch_tokens = {budget:,}"
    meaning = alone if tokens > budget else f"shares packs of up to {budget:,} tokens with others"
    found = [Fact("longest trajectory", tokens, "tokens", f"prompt and response; {meaning}")]
    halves = {"its policy update": (policy_activations, policy_packs)}
    if config.algorithm.value is not None:
        halves["its value update"] = (value_activations, value_packs)
    turned = {"gradient_checkpointing": not config.learner.gradient_checkpointing}
    learner = config.learner.model_copy(update=turned)
    both = config, config.model_copy(update={"learner": learner})
    for name, (activations, packs) in halves.items():
        taken, other = (activations(each, shape, packs(each)[0], on_gpu=on_gpu) for each in both)
        word = "without" if config.learner.gradient_checkpointing else "with"
        other_text = f"{other.total / MIB:,.0f} {word} learner.gradient_checkpointing"
        meaning = f"{taken.text()}; {other_text}"
        found.append(Fact(name, round(taken.total / MIB), "MiB", meaning))
    return found
