"""Checks across sections, and of what a configuration needs from the machine.

`headrace.config.validation.rules` are facts about the values alone. `check_machine` looks at
folders, files, ports and memory. Both raise UserError with one line. Of models only headers and
JSON files are read, no weights. A value model (a critic of another run, a reward model, a line
reward model) reads the policy's token ids and starts with all of its own weights: with a tokenizer
that numbers tokens otherwise, too few embeddings, or no head of one number, it would know nothing,
and no error would say so.
"""

import json
from glob import glob
from pathlib import Path
from typing import Any

from headrace.config.device_defaults import gpu_places, ranks_on_gpus, resolve, resolve_generator
from headrace.config.estimates.activations import critic_shape, reference_shape
from headrace.config.estimates.memory import DTYPE_BYTES, gpu_memory, host_memory
from headrace.config.estimates.model_shape import ModelShape, model_shape, tensor_sizes
from headrace.config.loading.hub import is_hub_name
from headrace.config.sections.algorithm import BehaviourRatioConfig, ReinforceLossConfig
from headrace.config.sections.run import RunConfig
from headrace.config.sections.task import DatasetConfig, members
from headrace.config.validation.rules import RULES
from headrace.config.validation.section_rules import reward_problems, task_problems
from headrace.errors import UserError
from headrace.host.hardware import GIB, MIB, SHARED_MEMORY, Hardware, port_is_free

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
REFERENCE = "algorithm.kl.reference_path"
MIN_SHM_BYTES = 512 * MIB
"""For the ranks of one host: NCCL takes some 10 MiB for each pair of ranks and channel where GPUs
have no peer access, so that Docker's 64 MiB are too little for two."""


def problems(config: RunConfig) -> list[str]:
    """One line for every rule that a configuration breaks."""
    found = [f"{rule.key}: {rule.advice.format(c=config)}" for rule in RULES if rule.broken(config)]
    return [*found, *reward_problems(config.reward), *task_problems(config.task)]


def check_recipe(config: RunConfig) -> None:
    """UserError for the first broken rule, and how many more there are."""
    found = problems(config)
    if found:
        more = f" (and {len(found) - 1} more; see `headrace config check`)" if found[1:] else ""
        raise UserError(found[0] + more)


def never_ends(config: RunConfig) -> bool:
    """Return whether a run goes on until somebody stops it."""
    stop = config.stop
    limits = (stop.updates, stop.train_time_s, stop.tokens, stop.accuracy, stop.after_warmup)
    return not config.evaluation.only and not any(limits)


def ignores_age(config: RunConfig) -> bool:
    """Return whether old tokens are trained as if the present policy had sampled them: plain policy
    gradient has no ratio, and the ratio to the sampler no weight."""
    schedule, algorithm = config.schedule, config.algorithm
    return (
        schedule.mode == "streaming"
        and schedule.max_staleness > 0
        and isinstance(algorithm.policy_loss, ReinforceLossConfig)
        and isinstance(algorithm.ratio, BehaviourRatioConfig)
    )


def check_machine(config: RunConfig, hardware: Hardware) -> None:
    """UserError where a folder, file, port or the memory that a run needs is not there."""
    shape = check_model(config)
    check_sampler(config, on_gpu=bool(hardware.gpus))
    check_dataset(config)
    host, port = config.transport.host, config.transport.port
    if port and not port_is_free(host, port):
        raise UserError(
            f"transport.port = {port} is in use on {host}, or that is no address of this machine: "
            "choose another by transport.port=PORT (0 takes a free one) or transport.host"
        )
    check_gpus(config, hardware)
    _check_memory(config, hardware, shape)


def check_model(config: RunConfig) -> ModelShape:
    """The policy's shape; UserError where a model is missing, or answers are too long for it."""
    judges = {f"reward.judges.{n}.path": j.path for n, j in config.reward.judges.items()}
    speaking = {"model.path": config.model.path, **judges}
    trains = not config.evaluation.only
    kl, lora = (config.algorithm.kl, config.learner.lora) if trains else (None, None)
    reference = None if kl is None else kl.reference_path
    paths = {**speaking, "model.critic_path": config.model.critic_path, REFERENCE: reference}
    for key, path in ((k, p) for k, p in paths.items() if p is not None):
        folder = Path(path)
        if not folder.is_dir():
            more = "; the hub's is not in the cache yet, and a run downloads it"
            raise UserError(
                f"{key} = {path!r}: no such model folder (looked beside the recipe and in the "
                f"working directory){more if is_hub_name(path) else ''}"
            )
        if not (folder / "config.json").is_file():
            raise UserError(f"{key} = {path!r}: no config.json in it, so not a model folder")
        if not any(folder.glob("*.safetensors")):
            raise UserError(f"{key} = {path!r}: no *.safetensors weights in it")
        if key in speaking and not any((folder / name).is_file() for name in TOKENIZER_FILES):
            raise UserError(f"{key} = {path!r}: no tokenizer in it")
    if config.model.critic_path is not None:
        check_value_model(Path(config.model.critic_path), Path(config.model.path))
    if reference is not None:
        check_tokens(REFERENCE, Path(reference), Path(config.model.path))
    try:
        shape = model_shape(Path(config.model.path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"model.path = {config.model.path!r}: cannot read it: {error}") from error
    others = [of(config, shape) if trains else None for of in (critic_shape, reference_shape)]
    for name, read in zip(("model", "value model", "reference"), (shape, *others), strict=True):
        tokens = config.longest + (config.anchor_tokens if name == "value model" else 0)
        if read and read.context < tokens and config.generator.engine != "fake":
            raise UserError(
                f"prompt and answer may have {tokens} tokens, and the {name}'s context is "
                f"{read.context}: lower task.max_prompt_length or max_response_length, or, with an "
                "environment, set environment.max_context"
            )
    if (value := config.algorithm.value) and others[0] and (value.layers or 0) > others[0].layers:
        raise UserError(f"algorithm.value.layers = {value.layers}: there are {others[0].layers}")
    if lora is not None and lora.targets is not None:
        sizes = tensor_sizes(Path(config.model.path)).items()
        known = {n.split(".")[-2] for n, size in sizes if ".layers." in n and size > shape.hidden}
        if known and known.isdisjoint(lora.targets):
            raise UserError(
                f"learner.lora.targets = {lora.targets} names no layer; known: "
                f"{', '.join(sorted(known))}"
            )
    return shape


def check_sampler(config: RunConfig, *, on_gpu: bool) -> None:
    """UserError where an engine samples by another function than transformers (the learner)."""
    if config.generator.engine == "fake":
        return
    shape = json.loads((Path(config.model.path) / "config.json").read_text())
    shape = shape.get("text_config", shape)
    family, window = shape.get("model_type"), shape.get("sliding_window")
    longest = config.longest
    where, instead = f"model.path = {config.model.path!r}", 'generator.engine = "torch"'
    rope = shape | (shape.get("rope_parameters") or shape.get("rope_scaling") or {})
    is_long = rope.get("rope_type", rope.get("type")) in ("longrope", "su")  # Phi 3, Phi 4 mini
    if is_long and longest > (short := rope["original_max_position_embeddings"]):
        raise UserError(
            f"{where}: beyond {short} tokens LongRoPE is another, for vLLM in the whole run, for "
            "the learner in each batch that is as long: keep task.max_prompt_length + "
            f"task.max_response_length to {short}"
        )
    if config.generator.engine != "vllm":
        return
    if family == "cohere2" and window and longest > window:
        raise UserError(
            f"{where}: a token of cohere2 sees {window} tokens, and {window + 1} in vLLM: keep "
            f"task.max_prompt_length + task.max_response_length to {window}, or take {instead}"
        )
    precision = config.generator.dtype
    if family == "apertus" and precision != "bfloat16" and not (on_gpu and precision == "auto"):
        raise UserError(
            f"{where}: vLLM computes the activation of apertus in bfloat16 whatever the model is "
            f'in: take generator.dtype = "bfloat16", or {instead}'
        )


def check_dataset(config: RunConfig) -> None:
    """UserError where a dataset file is missing."""
    for domain, task in members(config.task).items():
        if not isinstance(task, DatasetConfig):
            continue
        key = f"task.datasets.{domain}" if domain else "task"
        for name, path in (("path", task.path), ("eval_path", task.eval_path)):
            if path is not None and not (Path(path).exists() or glob(path)):
                raise UserError(
                    f"{key}.{name} = {path!r}: no such file (looked beside the recipe and in the "
                    "working directory)"
                )


def check_gpus(config: RunConfig, hardware: Hardware) -> None:
    """UserError where requested GPUs are missing or cannot work. A CPU runs tensor parallel
    ranks."""
    ranks, width = ranks_on_gpus(config), config.generator.tensor_parallel_size
    count, shm = len(hardware.gpus), hardware.shm_bytes
    vllm = hardware.torch_cuda and config.generator.engine == "vllm" and config.generator.count
    asks = vllm or (ranks and config.learner.device == "cuda")
    several = max(ranks, width) > 1 and shm is not None and shm < MIN_SHM_BYTES
    for wrong, text in (
        (hardware.misnamed, f"{hardware.misnamed}; CUDA ignores it and what follows"),
        (
            asks and not count,
            f"{'vLLM is built for CUDA' if vllm else 'learner.device is cuda'}, but there is no "
            f"GPU: {hardware.without or 'none is offered'}; `headrace doctor` says more",
        ),
        (
            config.generator.quantization and not hardware.torch_cuda,
            "generator.quantization is for GPUs: vLLM has no such kernels on most processors",
        ),
        (
            count and width > count,
            f"generator.tensor_parallel_size = {width} but this machine has {count} GPU(s)",
        ),
        (
            count and ranks > count,
            f"learner.ranks = {ranks} but this machine has {count} GPU(s), and two ranks cannot "
            f"share one; use learner.ranks={count} or learner.device=cpu",
        ),
        (
            count and is_too_old(hardware),
            f"driver {hardware.driver} knows CUDA up to {hardware.driver_cuda}, and torch is built "
            f"for {hardware.torch_cuda}: update the driver, or install torch for an older CUDA",
        ),
        (
            count and several,
            f"{SHARED_MEMORY} has {(shm or 0) / MIB:.0f} MiB free, and the ranks of NCCL and vLLM "
            f"want {MIN_SHM_BYTES // MIB}: start the container with --shm-size=8g or --ipc=host",
        ),
    ):
        if wrong:
            raise UserError(text)


def is_too_old(hardware: Hardware) -> bool:
    """Return whether the driver's CUDA major version is older than torch's."""
    versions = (hardware.driver_cuda, hardware.torch_cuda or "")
    driver, torch = (int(version.partition(".")[0] or 0) for version in versions)
    return 0 < driver < torch


def _check_memory(config: RunConfig, hardware: Hardware, shape: ModelShape) -> None:
    run = resolve(config, hardware, shape).config
    need = host_memory(run, shape, on_gpu=bool(hardware.gpus))
    if need.total > hardware.available_bytes:
        raise UserError(
            f"not enough memory: this recipe needs about {need.total / GIB:.1f} GiB "
            f"({need.text()}), {hardware.available_bytes / GIB:.1f} GiB are free; {need.advice}"
        )
    places, rank = gpu_places(run, hardware.gpus), gpu_memory(run, shape)
    weights = shape.parameters * DTYPE_BYTES[run.generator.dtype]
    for gpu in hardware.gpus:
        company, free = places.company(gpu.device), gpu.free_bytes
        found = resolve_generator(config, [gpu], company, rank.total, bfloat16=True)
        own = found.config.generator
        engines = company.generators if own.engine == "vllm" else 0
        each = int(gpu.memory_bytes * (own.gpu_memory_utilization or 0))
        total, room = company.ranks * rank.total + engines * each, gpu.memory_bytes
        free = room if free is None else free
        if total > free or (engines and each < weights / own.tensor_parallel_size):
            raise UserError(
                f"not enough GPU memory: GPU {gpu.index} has {free / GIB:.1f} of {room / GIB:.1f} "
                f"GiB free; {company.ranks} learner rank(s) take about {rank.total / GIB:.1f} "
                f"({rank.text()}), {engines} generator(s) {each / GIB:.1f} each, of which weights "
                f"{weights / GIB:.1f}: end other processes on it (nvidia-smi lists them) or hide "
                "it by CUDA_VISIBLE_DEVICES, lower generator.gpu_memory_utilization, or "
                f"{rank.advice}"
            )


HEAD_WEIGHT = "score.weight"
"""The head's name in models for token classification."""


def check_value_model(folder: Path, policy: Path) -> None:
    """UserError where the folder has no head of one number, or does not read the policy's tokens. A
    folder without a tokenizer, such as a checkpoint, passes."""
    named = f"model.critic_path = {str(folder)!r}"
    try:
        sizes, shape, other = tensor_sizes(folder), model_shape(folder), model_shape(policy)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{named}: cannot read it: {error}") from error
    if HEAD_WEIGHT not in sizes:
        raise UserError(
            f"{named}: it has no {HEAD_WEIGHT}, so it is no value model; name a critic of another "
            "run, or a reward model with a scalar head"
        )
    if sizes[HEAD_WEIGHT] != shape.hidden:
        raise UserError(
            f"{named}: its head says {sizes[HEAD_WEIGHT] // shape.hidden} numbers for each token, "
            "and a value is one"
        )
    if shape.vocabulary < other.vocabulary:
        raise UserError(
            f"{named}: it knows {shape.vocabulary} tokens and the policy {other.vocabulary}; take "
            "a value model with the policy's tokenizer"
        )
    check_tokens("model.critic_path", folder, policy)


def check_tokens(key: str, folder: Path, policy: Path) -> None:
    """UserError, naming the key, where the tokenizers of a folder and of the policy number tokens
    otherwise; a folder without one passes."""
    named = f"{key} = {str(folder)!r}"
    try:
        ours, theirs = _vocabulary(folder), _vocabulary(policy)
    except (OSError, ValueError) as error:
        raise UserError(f"{named}: cannot read it: {error}") from error
    if ours is not None and theirs is not None and ours != theirs:
        raise UserError(
            f"{named}: its tokenizer is not that of model.path = {str(policy)!r}, so the same ids "
            "would be other texts; take one with the policy's tokenizer"
        )


def _vocabulary(folder: Path) -> dict[str, int] | None:
    """Return the ids of all tokens; None without a `tokenizer.json` that has them."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    table: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    entries = table.get("model", {}).get("vocab")
    if entries is None:
        return None
    if isinstance(entries, list):  # pairs of a token and its score, in the order of the ids
        known = {token: number for number, (token, _) in enumerate(entries)}
    else:
        known = dict(entries)
    return known | {token["content"]: token["id"] for token in table.get("added_tokens", ())}
