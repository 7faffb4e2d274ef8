"""Estimate of the memory that a run takes, from its configuration.

In: a configuration and the machine. Out: bytes by part, on the host or on a GPU. The constants are
proportional set sizes measured on a two-core machine (vLLM 0.32 and torch 2.13 on the CPU; on a
GPU's host resident sizes). Carried keys are a bound; every other part should be right to within
15 % of what full batches of the longest answers take (`headrace config explain --measure`).
"""

from dataclasses import dataclass
from pathlib import Path

from headrace.config.estimates.activations import critic_shape, largest_activations, reference_shape
from headrace.config.estimates.model_shape import ModelShape, tensor_sizes, weight_files
from headrace.config.sections.reward import SourceConfig
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import MIB

COORDINATOR = 260 * MIB
"""With the launcher."""
DASHBOARD = 300 * MIB
REWARD_PROCESS = 57 * MIB
MODEL_KINDS = ("prm", "pairwise", "ranker", "bradley_terry")
"""Kinds of rewards whose children hold a model (options.model)."""
VLLM_PROCESSES = {True: 1400 * MIB, False: 1060 * MIB}
"""vLLM's client and engine process without weights, keys and values, by whether it is on a GPU: on
a CPU the engine is forked."""
TORCH_SAMPLER = 700 * MIB
LEARNER_PROCESS = {True: 900 * MIB, False: 450 * MIB}
"""Python, torch and DeepSpeed in one rank, by whether it is on a GPU."""

KEPT_VERSIONS = 3
"""Published versions that stay, beside one that is being written."""
OFFLOADED = "optimizers on the host"

LOWERED_BY = {
    "kv cache": "generator.kv_cache_gib",
    "generators": "generator.count",
    "rewards": "reward.workers or their children",
    "carried keys": "learner.carried_gib (in GPU memory learner.carried_on_device_gib)",
    "copy to checkpoint": "the number of trained weights, by learner.lora",
    "logits": "learner.logits_chunk_tokens",
    "activations": "learner.micro_batch_tokens, or set learner.gradient_checkpointing",
}
"""The key of each part that a key lowers; others shrink with the model, or with more
learner.ranks and a higher learner.zero_stage."""

ROLES = {
    "coordinator": "coordinator", "generators": "generator", "kv": "generator", "judge": "judge",
    "rewards": "reward", "dashboard": "dashboard", "published": "",
}  # fmt: skip
"""Role of the processes that hold a part, by its first word; all others are the learner's.
Published weights are files."""
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes by part, and which key shrinks each."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    @property
    def advice(self) -> str:
        """Advice on the largest part."""
        largest = max(self.parts, key=lambda name: self.parts[name])
        other = "the size of the model, or raise learner.zero_stage with more learner.ranks"
        return f"for its largest part ({largest}) lower {LOWERED_BY.get(largest, other)}"

    def of_role(self, role: str) -> int:
        """Bytes of all processes of a role."""
        named = ((ROLES.get(name.split()[0], "learner"), size) for name, size in self.parts.items())
        return sum(size for one, size in named if one == role)

    def text(self) -> str:
        """`generators 1.2 GiB (kv cache 1.0), ...`, largest first."""
        ordered = sorted(self.parts.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {size / 2**30:.1f}" for name, size in ordered if size >= 50 * MIB)


def trained_bytes(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> dict[str, int]:
    """Return a rank's bytes by part: weights of policy, value model and frozen models, optimizer
    state (with gradients, where it is on the host), gradients of the model in training (at ZeRO 3,
    which keeps their memory, of all), features of a fitted value model, a ranker."""
    learner, ranks = config.learner, config.learner.ranks
    critic, reference = critic_shape(config, shape), reference_shape(config, shape)
    fits = config.algorithm.fits_value
    models = [shape] if critic is None or fits else [shape, critic]
    frozen = [reference, critic if fits else None]
    sizes = [model.parameters for model in models]
    if (lora := learner.lora) is not None:
        # The base is there once, besides models that are not of it.
        teacher = reference if reference is not shape else None
        frozen = [shape, teacher, critic if config.model.critic_path is not None else None]
        sizes = [model.adapter_parameters(lora.rank, lora.targets) for model in models]
    stage, on_host = learner.zero_stage or 0, on_gpu and learner.offload_optimizer
    weights = 2.0 if learner.precision == "bfloat16" else 4.0
    # Beside bfloat16 weights, and beside those that ZeRO 1 or 2 cuts up, are some in float32.
    gradients, moments = 4.0, 12.0 if weights == 2.0 or stage in (1, 2) else 8.0
    if on_host:  # There are gradients, as summed and as they are in a step.
        # ZeRO 1 sums them on the GPU; so does ZeRO 2 where weights are bfloat16.
        on_device = stage == 1 or (stage == 2 and weights == 2.0)
        gradients, moments = 4.0 * on_device, 20.0
    moments /= ranks if stage >= 1 else 1
    gradients /= ranks if stage >= 2 else 1
    held = weights * sum(model.parameters for model in frozen if model is not None)
    weights /= ranks if stage >= 3 else 1
    parts = {
        "models": int(held + weights * sum(sizes)),
        OFFLOADED if on_host else "optimizers": int(sum(sizes) * moments),
        "gradients": int((sum(sizes) if stage >= 3 else max(sizes)) * gradients),
    }
    if fits and critic is not None and (value := config.algorithm.value) is not None:
        # In the long run as many tokens end as are trained; states are projected to the width.
        states, ended = critic.layers * critic.hidden, config.schedule.batch_windows * config.window
        width = min(value.features, states)
        rows = max(config.longest, ended // ranks) + (states if width < states else 0)
        parts["features"] = 4 * width * rows
    ranker = config.reward.ranker() if learner.ranker is not None else None
    if ranker and (folder := Path(str(ranker.options.get("model"))).expanduser()).is_dir():
        parts["ranker"] = 16 * sum(tensor_sizes(folder).values())  # gradients and moments included
    return parts


def carried_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return a rank's carried key and value bytes if all trajectories are longest ones."""
    learner = config.learner
    if learner.context != "carried":
        return 0
    models = [shape, critic_shape(config, shape), reference_shape(config, shape)]
    each = sum(model.kv_bytes_per_token for model in models if model is not None)
    width = 2 if learner.precision == "float32" else 1
    # Of an answer's last window nothing is kept.
    last = (config.task.max_response_length - 1) % config.window + 1
    tokens = max(0, config.longest - last) * -(-config.schedule.bound // learner.ranks)
    return tokens * each * width


def host_memory(config: RunConfig, shape: ModelShape, *, on_gpu: bool) -> MemoryEstimate:
    """Bytes of main memory that a run takes."""
    generator, reward, learner = config.generator, config.reward, config.learner
    vllm = generator.engine == "vllm"
    weights = shape.parameters * DTYPE_BYTES[generator.dtype]
    parts = {"coordinator": COORDINATOR}
    if generator.engine != "fake":
        base = VLLM_PROCESSES[on_gpu] if vllm else TORCH_SAMPLER
        parts["generators"] = generator.count * (base + (0 if on_gpu else 2 * weights))
    if vllm and not on_gpu:
        parts["kv cache"] = int(generator.count * generator.kv_cache_gib * 2**30)
    if not config.evaluation.only:
        on_cpu = not on_gpu or learner.device == "cpu"
        parts["learner processes"] = learner.ranks * LEARNER_PROCESS[not on_cpu]
        most = int(learner.carried_gib * 2**30)
        parts["carried keys"] = learner.ranks * min(carried_bytes(config, shape), most)
        published = published_bytes(config, shape)
        parts["published weights"] = (KEPT_VERSIONS + 1) * published
        rank = trained_bytes(config, shape, on_gpu=not on_cpu)
        if on_gpu or config.publishes_copies:
            parts["copy to publish"] = published
            # A checkpoint is written from copies: one of the models, each rank's of its optimizers.
            parts["copy to checkpoint"] = checkpoint_bytes(config, shape)
        if on_cpu:
            rank |= largest_activations(config, shape, on_gpu=False).parts()
        else:
            rank = {name: size for name, size in rank.items() if name == OFFLOADED}
        parts |= {name: learner.ranks * size for name, size in rank.items()}
    scorers = sum(source.children * _scorer_bytes(source) for source in reward.each().values())
    parts["rewards"] = reward.workers * (REWARD_PROCESS + scorers)
    for name, judge in reward.judges.items():
        stored = sum(file.stat().st_size for file in weight_files(Path(judge.path)))
        on_host = 0 if on_gpu else 2 * stored + int(judge.kv_cache_gib * 2**30)
        parts[f"judge {name}"] = VLLM_PROCESSES[on_gpu] + on_host
    if config.dashboard.enabled:
        parts["dashboard"] = DASHBOARD
    return MemoryEstimate(parts)


def published_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return the bytes of a version of weights, or of the adapter that is published instead."""
    numbers = shape.parameters
    if (adapter := config.learner.published_adapter) is not None:
        numbers = shape.adapter_parameters(adapter.rank, adapter.targets)
    return numbers * DTYPE_BYTES[config.generator.dtype]


def wanted_shared_memory(version: int) -> int:
    """Return the bytes to be free in /dev/shm for versions of so many: twice those that are kept
    and one more."""
    return 2 * (KEPT_VERSIONS + 1) * version


def checkpoint_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Return the bytes of a checkpoint: the models, and each rank's share of the optimizers."""
    width = 2 if config.learner.precision == "bfloat16" else 4
    critic, rank = critic_shape(config, shape), trained_bytes(config, shape, on_gpu=False)
    models = shape.parameters + (critic.parameters if critic else 0)
    # At ZeRO 3 float32 weights are in a share, too: no others are beside its two moments.
    numbers = 1.5 if width == 4 and config.learner.zero_stage == 3 else 1.0
    return width * models + int(config.learner.ranks * rank["optimizers"] * numbers)


def _scorer_bytes(source: SourceConfig) -> int:
    """Return the bytes of a scoring child; one with a reward model has it in float32."""
    folder = source.options.get("model")
    if source.kind not in MODEL_KINDS or not isinstance(folder, str) or not Path(folder).is_dir():
        return REWARD_PROCESS
    return LEARNER_PROCESS[False] + 4 * sum(tensor_sizes(Path(folder)).values())


def gpu_memory(config: RunConfig, shape: ModelShape) -> MemoryEstimate:
    """Bytes of one GPU that a learner rank takes."""
    rank = trained_bytes(config, shape, on_gpu=True)
    rank.pop(OFFLOADED, None)
    on_device = int(config.learner.carried_on_device_gib * 2**30)
    carried = {"carried keys": min(carried_bytes(config, shape), on_device)}
    return MemoryEstimate(rank | largest_activations(config, shape, on_gpu=True).parts() | carried)
