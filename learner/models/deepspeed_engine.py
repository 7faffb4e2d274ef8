"""DeepSpeed engines, alike on one CPU rank and on many GPUs.

In: a network and its optimizer's settings. Out: a `TrainingEngine` that runs packs forward, takes
losses backward and steps. Promises: a step happens on all ranks or on none; a loss or gradient that
is not finite on any rank skips it everywhere, and says so; losses are summed over ranks, never
averaged, because they come normalised by the whole batch.
"""

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

from headrace.config.device_defaults import MIN_BF16_ZERO_STAGE
from headrace.config.sections.learner import LearnerConfig, OptimizerConfig
from headrace.errors import UserError
from headrace.host.hardware import has_gpu, interface_towards
from headrace.host.progress_reporter import ProgressReporter
from headrace.protocol.transport.sockets import is_loopback
from learner.models.forward import Pack

os.environ.setdefault("DS_ACCELERATOR", "cuda" if has_gpu() else "cpu")

import deepspeed
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.utils import logger as deepspeed_logger

deepspeed_logger.setLevel(logging.ERROR)
# Compiling this C++ extension takes a minute and needs a compiler; gloo does without.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


# How long a rank waits for the others inside an update; between updates
# `learner.process.rank_broadcast` waits.
RANK_TIMEOUT = timedelta(minutes=30)


class StepResult(NamedTuple):
    """Result of an optimizer step: was it applied, the gradient's norm unclipped."""

    applied: bool
    grad_norm: float


class TrainingEngine(Protocol):
    """Engine of a model that trains, as an update uses it."""

    steps: int
    """Optimizer steps applied so far."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        """Run the network's forward pass."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the loss's gradient; `last`: of this optimizer step."""

    def step(self) -> StepResult:
        """Clip and apply the gradients, or drop them where they are not finite."""

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""


@dataclass
class StepLog:
    """Log of one model's update: optimizer steps, losses of micro-batches, tokens.

    `work` receives the progress under the name `stage`; `planned`: optimizer steps."""

    work: ProgressReporter = field(default_factory=ProgressReporter)
    stage: str = ""
    planned: int = 0
    passes: int = 0
    applied: int = 0
    dropped: int = 0
    grad_norms: list[float] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    tokens: int = 0
    trained: int = 0
    reads: int = 0
    fillers: int = 0

    @property
    def taken(self) -> int:
        """Optimizer steps, applied or not."""
        return self.applied + self.dropped

    @property
    def grad_norm(self) -> float | None:
        """Mean gradient norm of the steps, before clipping; None without any."""
        return fmean(self.grad_norms) if self.grad_norms else None

    def step(self, engine: TrainingEngine) -> bool:
        """Take an optimizer step; return whether it was applied."""
        step = engine.step()
        self.applied += step.applied
        self.dropped += not step.applied
        self.grad_norms.append(step.grad_norm)
        self._report_progress()
        return step.applied

    def count(self, pack: Pack, *, reads: int) -> None:
        """Count a forward pass, of which `reads` tokens have a loss (0: no loss at all)."""
        size = pack.token_ids.numel()
        self.tokens += size
        if not pack.reads.numel():
            self.fillers += size
        if reads:
            self.trained += size
            self.reads += reads
        self.passes += 1
        self._report_progress()

    def _report_progress(self) -> None:
        step = min(self.taken + 1, self.planned)
        where = f"{self.stage} {step} of {self.planned}" if step else f"{self.stage}s to come"
        self.work.at(where, self.passes, unit="micro-batches")


class DeepSpeedEngine:
    """An `TrainingEngine` on DeepSpeed: ZeRO 0 to 3, offload, bfloat16."""

    def __init__(
        self,
        network: nn.Module,
        optimizer: OptimizerConfig,
        config: LearnerConfig,
        *,
        decay: Callable[[int], float] = lambda done: 1.0,
    ) -> None:
        """`decay` maps a step to a factor of the learning rate, besides warm-up."""
        self.network = network
        self.steps = 0
        self._zero = _zero_stage(config)
        self._world = torch.distributed.get_world_size()
        self._clip = optimizer.grad_clip
        device = next(network.parameters()).device
        self._trained: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        adam = torch.optim.AdamW(
            self._trained,
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        warmup = optimizer.warmup_steps
        schedule = torch.optim.lr_scheduler.LambdaLR(
            adam, lambda done: min(1.0, (done + 1) / (warmup + 1)) * decay(done)
        )
        self._adam, self._schedule = adam, schedule
        self.engine, *_ = deepspeed.initialize(
            model=network,
            optimizer=adam,
            lr_scheduler=schedule,
            config=_deepspeed_config(optimizer, config, device),
            dist_init_required=False,
        )

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self.engine(*arguments, **settings)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.engine.get_lr()[0])

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the gradient of a loss that sums over ranks; `last`: then reduce it.

        A loss that is not finite makes every gradient NaN, so that the one check of `step` finds
        it on all ranks."""
        self.engine.set_gradient_accumulation_boundary(last)
        poison = torch.where(loss.detach().isfinite(), 1.0, math.nan)
        # DeepSpeed averages gradients over ranks; our losses are parts of one sum.
        self.engine.backward(loss * (poison * self._world), scale_wrt_gas=False)

    def step(self) -> StepResult:
        """Clip and apply the gradients, or drop them on all ranks if any is not finite."""
        norm = self._step_partitioned() if self._zero else self._step_replicated()
        applied = math.isfinite(norm)
        self.steps += applied
        return StepResult(applied, norm)

    def _step_replicated(self) -> float:
        """Step at ZeRO 0: each rank holds the whole reduced gradient and decides alike."""
        gradients = [p.grad for p in self._trained if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        result = norm.item()
        if not math.isfinite(result):
            self.engine.zero_grad()
            return result
        torch.nn.utils.clip_grads_with_norm_(self._trained, self._clip, norm)
        self.engine.step()
        return result

    def _step_partitioned(self) -> float:
        """Step at ZeRO 1 to 3: DeepSpeed drops a step whose norm is not finite."""
        self.engine.step()
        optimizer = self.engine.optimizer
        if optimizer.overflow:  # DeepSpeed keeps the sum of an offloaded one, and would add to it.
            optimizer.averaged_gradients.clear()
            return math.inf
        return float(optimizer._global_grad_norm)

    def state(self) -> dict[str, Tensor]:
        """Copy this rank's optimizer state, and float32 master weights if any, to the CPU."""
        tensors = {"steps": torch.tensor(self.steps)}
        moments = self._adam.state
        for i, partition in enumerate(self._partitions()):
            if self._zero:
                tensors[f"{i}.master"] = partition.detach()
            for name, value in moments.get(partition, {}).items():
                tensors[f"{i}.{name}"] = torch.as_tensor(value)
        return {name: x.to("cpu", copy=True).contiguous() for name, x in tensors.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned, on as many ranks as then (any number at ZeRO 0)."""
        moments = self._adam.state
        for i, partition in enumerate(self._partitions()):
            own = {k.partition(".")[2]: x for k, x in tensors.items() if k.startswith(f"{i}.")}
            if "master" in own:
                partition.detach().copy_(own.pop("master"))
            moments[partition] = {
                name: tensor.clone().to(partition.device) for name, tensor in own.items()
            }
        self.steps = int(tensors["steps"].item())
        self._schedule.last_epoch = self.steps
        for group, base, factor in zip(
            self._adam.param_groups, self._schedule.base_lrs, self._schedule.lr_lambdas, strict=True
        ):
            group["lr"] = base * factor(self.steps)

    def _partitions(self) -> list[Tensor]:
        """Return the tensors that the optimizer steps on this rank."""
        if self._zero == 3:
            return list(self.engine.optimizer.fp32_partitioned_groups_flat)
        if self._zero:
            return list(self.engine.optimizer.single_partition_of_fp32_groups)
        return self._trained

    def whole_state(self, model: nn.Module, *, keep: bool, pin: bool = False) -> dict[str, Tensor]:
        """Return the state of a part of the network, {} unless `keep`. A collective.

        At ZeRO 3 parameters are copies on the CPU, gathered one by one: no GPU has room for all.
        `pin`: in page-locked memory, which is faster once it is there, but stays."""
        whole: dict[int, Tensor] = {}
        if self._zero == 3:
            self.engine.optimizer.empty_partition_cache()  # waits for those on their way
            for x in model.parameters():
                with deepspeed.zero.GatheredParameters([x]):
                    if keep:
                        copy = torch.empty_like(x, device="cpu", pin_memory=pin and x.is_cuda)
                        whole[id(x)] = copy.copy_(x.detach())
        state = model.state_dict(keep_vars=True) if keep else {}
        return {name: whole.get(id(x), x.detach()) for name, x in state.items()}

    def free(self) -> None:
        """Give back the memory of optimizer and shares; the engine cannot be used any more.

        DeepSpeed's hooks, stacks and caches would hold them for as long as the process lives."""
        self.engine.destroy()
        if self._zero == 3:
            vars(self.engine.optimizer).clear()
            vars(self._adam).clear()
            for parameter in self.network.parameters():
                del vars(parameter)["ds_tensor"]


def _zero_stage(config: LearnerConfig) -> int:
    """Return the ZeRO stage, for bfloat16 at least `MIN_BF16_ZERO_STAGE`.

    Only there DeepSpeed keeps float32 master weights and sums gradients in float32."""
    return max(config.zero_stage or 0, MIN_BF16_ZERO_STAGE if config.precision == "bfloat16" else 0)


def _deepspeed_config(
    optimizer: OptimizerConfig, config: LearnerConfig, device: torch.device
) -> dict[str, Any]:
    stage = _zero_stage(config)
    zero: dict[str, Any] = {"stage": stage}
    if config.offload_optimizer and stage and device.type == "cuda":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if device.type == "cpu":
        # The default of 5e8 elements is allocated at once.
        zero |= {"overlap_comm": False, "reduce_bucket_size": 5_000_000,
                 "allgather_bucket_size": 5_000_000}  # fmt: skip
    elif stage == 3:
        zero["reduce_bucket_size"] = 50_000_000  # Each engine keeps its own: 1 GB by default.
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # At ZeRO 0 we clip, with the norm that decided about the step.
        "gradient_clipping": optimizer.grad_clip if stage else 0.0,
        "zero_optimization": zero,
        "bf16": {"enabled": config.precision == "bfloat16", "check_grad_overflow": True},
        # A hundred micro-batches summed in bfloat16 are a hundredth off.
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**62,
    }


def join_ranks(
    *,
    rank: int,
    world_size: int,
    port: int,
    device: torch.device,
    address: str = "127.0.0.1",
    local_rank: int | None = None,
) -> None:
    """Form the group of all learner ranks (gloo on a CPU, NCCL on GPUs).

    Args:
        rank: this one, from 0. world_size: of all. port: of rank 0. device: this rank's; DeepSpeed
        takes its index, among those that this rank sees, as LOCAL_RANK. address: rank 0's host as
        the others know it. local_rank: on a CPU, this one's number on its host; None: all are on
        one host.

    Raises:
        UserError: on every rank, where some see GPUs and others none.
    """
    if device.type == "cuda":
        local_rank = device.index or 0
    os.environ |= {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "WORLD_SIZE": str(world_size),
    }
    interface = None if is_loopback(address) else interface_towards(address)
    if interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        # Gloo takes the interface of the host's own name, which is often the loopback.
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    if device.type == "cpu" and get_accelerator().device_name() != "cpu":
        set_accelerator(CPU_Accelerator())  # Else models would go to the GPU that this host has.
    # The group's own store: rank 0's, or under torchrun its agent's.
    store, _, _ = next(rendezvous("env://", timeout=RANK_TIMEOUT))
    check_devices(store, rank, world_size, device.type)
    deepspeed.init_distributed(
        dist_backend="nccl" if device.type == "cuda" else "gloo",
        auto_mpi_discovery=False,
        verbose=False,
        timeout=RANK_TIMEOUT,
    )


def check_devices(store: Store, rank: int, world_size: int, kind: str) -> None:
    """UserError on every rank where not all have this kind of device: no group would form."""
    store.set(f"device {rank}", kind)
    kinds = [store.get(f"device {other}").decode() for other in range(world_size)]
    store.set(f"read {rank}", kind)
    if rank == 0:  # Its process has the store, which ends with it.
        store.wait([f"read {other}" for other in range(world_size)])
    if set(kinds) != {kind}:
        told = ", ".join(f"{number}: {found}" for number, found in enumerate(kinds))
        raise UserError(f"the learner's ranks see different devices ({told}): set learner.device")
