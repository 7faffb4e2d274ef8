"""Defaults of open configuration keys, chosen for the computing device. Pure.

In: a configuration, the GPUs and the processes that share them. Out: the configuration with every
open key filled in, each with its reason. Keys that the recipe sets stay, except a ZeRO stage that
bfloat16 does not support and bfloat16 products on a processor without them; so any host may resolve
again. The launcher resolves the learner's keys on one host, Slurm and Ray alike, because it decides
which ranks get a GPU; `resolved.json` keeps the answer for a resumed run. Generators resolve their
own keys, because their hosts differ.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.config.estimates.memory import gpu_memory
from headrace.config.estimates.model_shape import ModelShape
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import GIB, Gpu, Hardware

MIN_BF16_ZERO_STAGE = 2
"""Minimum ZeRO stage at which DeepSpeed sums bfloat16 gradients in float32 as usual."""
GPU_MEMORY_SHARE = 0.9
"""Of a GPU's memory; the rest is for CUDA and for what lies in pieces."""


class DeviceChoice(NamedTuple):
    """The value of a key, and why."""

    key: str
    value: str | float
    why: str

    def __str__(self) -> str:
        return f"{self.key} = {json.dumps(self.value)} ({self.why})"


class ResolvedConfig(NamedTuple):
    """A configuration, and what was chosen in it."""

    config: RunConfig
    choices: tuple[DeviceChoice, ...]


class GpuSharing(NamedTuple):
    """Learner ranks and generators on a generator's GPU, itself among them."""

    ranks: int = 0
    generators: int = 1


ALONE = GpuSharing()


class GpuPlacement(NamedTuple):
    """GPUs of each learner rank and each generator, as CUDA_VISIBLE_DEVICES names them."""

    learner: tuple[tuple[str, ...], ...]
    generators: tuple[tuple[str, ...], ...]

    def company(self, *devices: str) -> GpuSharing:
        """Return the largest number of processes on one of these GPUs; ALONE without GPUs."""
        each = [GpuSharing(*(sum(d in own for own in side) for side in self)) for d in devices]
        return max(each, default=ALONE)


def ranks_on_gpus(config: RunConfig) -> int:
    """Learner ranks that have a GPU each where there are any."""
    on_cpu = config.evaluation.only or config.learner.device == "cpu"
    return 0 if on_cpu else config.learner.ranks


def gpu_places(config: RunConfig, gpus: Sequence[Gpu]) -> GpuPlacement:
    """Give learner ranks the first GPUs, generators the next; what does not fit shares."""
    devices = [gpu.device for gpu in gpus]
    taken, width = ranks_on_gpus(config), config.generator.tensor_parallel_size
    rest = devices[taken:] if len(devices) >= taken + width else devices
    starts = [i % max(1, len(rest) // width) * width for i in range(config.generator.count)]
    return GpuPlacement(
        tuple((device,) for device in devices[:taken]) or ((),) * config.learner.ranks,
        tuple(tuple(rest[start : start + width]) for start in starts),
    )


def resolve(
    config: RunConfig, hardware: Hardware, shape: ModelShape | None = None
) -> ResolvedConfig:
    """Resolve a run's keys on this machine. `shape` (the policy's) estimates GPU memory."""
    config, learner = resolve_learner(
        config, on_gpu=bool(hardware.gpus), bfloat16=hardware.bfloat16
    )
    places = gpu_places(config, hardware.gpus)
    company = places.company(*(device for own in places.generators for device in own))
    taken = gpu_memory(config, shape).total if shape is not None else 0
    config, generator = resolve_generator(
        config, hardware.gpus, company, taken, bfloat16=hardware.bfloat16
    )
    return ResolvedConfig(config, learner + generator)


def resolve_learner(config: RunConfig, *, on_gpu: bool, bfloat16: bool) -> ResolvedConfig:
    """Resolve the learner's keys. `on_gpu`: GPUs exist. `bfloat16`: the CPU can multiply it."""
    learner, why = config.learner, "the learner is on a CPU"
    if on_gpu := on_gpu and learner.device != "cpu":
        why = "the learner is on GPUs"
    chosen = "bfloat16" if on_gpu else "bf16_autocast"
    precision, cause = chosen if learner.precision == "auto" else learner.precision, why
    if precision == "bf16_autocast" and not on_gpu and not bfloat16:
        precision, cause = "float32", f"{why} without bfloat16 products"
        learner = learner.model_copy(update={"precision": "auto"})
    least, stated = MIN_BF16_ZERO_STAGE if precision == "bfloat16" else 0, learner.zero_stage
    staged = f"with {precision}"
    if stated is not None and stated < least:
        staged = f"not {stated}: bfloat16 sums gradients in float32 from there on"
        learner = learner.model_copy(update={"zero_stage": None})
    values = {
        "precision": (precision, cause),
        "zero_stage": (least, staged),
        "gradient_checkpointing": (on_gpu, why),
        "compile": (on_gpu and stated != 3, why if stated != 3 else "at ZeRO 3"),
    }
    return _filled(config.model_copy(update={"learner": learner}), "learner", values)


def resolve_generator(
    config: RunConfig,
    gpus: Sequence[Gpu],
    company: GpuSharing = ALONE,
    taken: int = 0,
    *,
    bfloat16: bool,
) -> ResolvedConfig:
    """Resolve a generator's keys for these GPUs (none: a CPU) and their sharing. `taken`: estimated
    bytes of a GPU per learner rank. `bfloat16`: the CPU can multiply it."""
    on_gpu, share, generator = bool(gpus), GPU_MEMORY_SHARE, config.generator
    why = shared = cause = f"the generator is on a {'GPU' if on_gpu else 'CPU'}"
    if generator.dtype == "bfloat16" and not on_gpu and not bfloat16:
        cause = f"{why} without bfloat16 products"
        generator = generator.model_copy(update={"dtype": "auto"})
        config = config.model_copy(update={"generator": generator})
    if on_gpu and company != ALONE:
        ranks, generators = company
        left = share - ranks * taken / min(gpu.memory_bytes for gpu in gpus)
        share = max(1, math.floor(100 * left / max(1, generators))) / 100
        shared = f"for {generators} on a GPU beside {ranks * taken / GIB:.1f} GiB of the learner"
    values = {
        "dtype": ("bfloat16" if on_gpu else "float32", cause),
        "enforce_eager": (not on_gpu, why),
        "max_num_seqs": (256 if on_gpu else 128, why),
        "gpu_memory_utilization": (share, shared),
    }
    return _filled(config, "generator", values)


def _filled(
    config: RunConfig, section: str, values: Mapping[str, tuple[Any, str]]
) -> ResolvedConfig:
    """The configuration with those keys of a section filled in that are open."""
    part = getattr(config, section)
    open_keys = [key for key in values if getattr(part, key) in (None, "auto")]
    part = part.model_copy(update={key: values[key][0] for key in open_keys})
    choices = (DeviceChoice(f"{section}.{key}", *values[key]) for key in open_keys)
    return ResolvedConfig(config.model_copy(update={section: part}), tuple(choices))
