"""Code that runs inside vLLM's engine processes, imported there by name.

`install` is an entry point of vLLM (`vllm_plugin` beside this file), which EngineCore and, where
there are several, its workers load when they start. It ties their lives to the generator's:
when that dies, however it dies, the kernel kills EngineCore and then its workers, which would
otherwise stay as orphans with their memory. It also has them dump their stacks on request
(`headrace.host.stack_dumps`), gather the tokens that EngineCore sends (`vllm_gather`), count what
it preempts, and keep the images of answers whose prompt is cached.
`WeightLoader` is mixed into vLLM's worker class and replaces its weights from a safetensors file or
from the learner's broadcast.
"""

import contextlib
import multiprocessing
import os
import stat
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from generators.engines.vllm_gather import TOKENS_VARIABLE
from generators.engines.vllm_gather import install as install_gatherer
from headrace.host import stack_dumps
from headrace.host.process_reaper import die_with

OWNER_VARIABLE = "HEADRACE_ENGINE_OWNER"
_STDERR = 2
_owner_files: list[tuple[int, os.stat_result]] = []
"""What the owner had open when it recorded it."""


def record_open_files() -> None:
    """Record sockets, pipes and files of this process, for an engine that it forks."""
    _owner_files.clear()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            status = os.fstat(int(name))
            kind = stat.S_IFMT(status.st_mode)
            if int(name) > _STDERR and kind in (stat.S_IFSOCK, stat.S_IFIFO, stat.S_IFREG):
                _owner_files.append((int(name), status))


def release_owner_files() -> None:
    """Give up the recorded files of the owner, which forked this engine.

    A connection that the owner closes would stay open here, and a signal to the engine would arrive
    at the owner's event loop, through its pipe. Numbers of files stay taken, for objects here may
    close them yet."""
    with open(os.devnull, "rb+", buffering=0) as nothing:
        for number, known in _owner_files:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(number), known):
                    os.dup2(nothing.fileno(), number)
    _owner_files.clear()


def install() -> None:
    """Prepare a process of the engine.

    Do nothing in the owner itself, in a process that was not started as an engine's, and where no
    owner is named."""
    owner = int(os.environ.get(OWNER_VARIABLE, "0"))
    parent = multiprocessing.parent_process()
    if owner in (0, os.getpid()) or parent is None or parent.pid is None:
        return
    die_with(parent.pid)
    release_owner_files()
    stack_dumps.listen()
    allow_amx()
    if parent.pid == owner:
        import vllm.v1.core.sched.output as sent
        from vllm.v1.engine.core import EngineCore

        # vLLM sends no image whose prefix is in the cache, and none later: where that cache is
        # cleared under an answer, the image is missing.
        sent.strip_covered_mm_data = lambda features, *_, **__: features
        install_gatherer(int(os.environ.get(TOKENS_VARIABLE, "1")))
        EngineCore.headrace_pid = lambda engine: os.getpid()
        EngineCore.headrace_preempted = _count_preempted()


def _count_preempted() -> Callable[[Any], list[int]]:
    """Return a method that tells what the scheduler preempted since it was last asked: requests,
    and their tokens, which are computed once more but for what the prefix cache still has."""
    from vllm.v1.core.sched.scheduler import Scheduler

    preempt, found = Scheduler._preempt_request, [0, 0]

    def counted(scheduler: Any, request: Any, *args: Any, **settings: Any) -> None:
        found[:] = found[0] + 1, found[1] + request.num_computed_tokens
        preempt(scheduler, request, *args, **settings)

    def told(engine: Any) -> list[int]:
        counts, found[:] = list(found), (0, 0)
        return counts

    Scheduler._preempt_request = counted
    return told


def allow_amx() -> None:
    """Ask Linux for the tile registers that vLLM's attention uses in bfloat16.

    vLLM does not ask, and its first answer would end the process by an illegal instruction."""
    import torch

    if torch.cpu._is_amx_tile_supported() and not torch.cpu._init_amx():
        torch.cpu._is_amx_tile_supported = lambda: False


class WeightLoader:
    """Extension of vLLM's worker, called by `collective_rpc` between steps."""

    def headrace_try(self: Any, method: str, *args: Any) -> str:
        """Load by a method of this class; return how that failed, an empty text if it did not.

        vLLM reads answers up to the first exception, and the others as those to its next call."""
        try:
            getattr(self, method)(*args)
        except Exception:  # whatever it is, each worker answers
            return traceback.format_exc()
        return ""

    def headrace_load(self: Any, path: str) -> None:
        """Replace all weights by those of a safetensors file."""
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            names = file.keys()
            self.headrace_replace((name, file.get_tensor(name)) for name in names)

    def headrace_adapt(self: Any, name: str, number: int, folder: str) -> None:
        """Replace the adapter of this name and number by the one in a folder."""
        from vllm.lora.request import LoRARequest

        self.add_lora(LoRARequest(name, number, folder, load_inplace=True))

    def headrace_receive(
        self: Any, rendezvous: str, size: int, tensors: Sequence[tuple[str, str, list[int]]]
    ) -> None:
        """Replace all weights by the learner's broadcast of (name, dtype, shape), in this order.

        `rendezvous`: host:port of a group of `size` ranks to join first, unless empty."""
        import torch

        from headrace.host.weight_group import WeightGroup, join_rendezvous

        if rendezvous:
            store = join_rendezvous(rendezvous)
            self._headrace_group = WeightGroup(store, self.rank + 1, size, self.device)
        group = self._headrace_group
        self.headrace_replace(
            (name, group.receive(getattr(torch, dtype), shape)) for name, dtype, shape in tensors
        )

    def headrace_replace(self: Any, tensors: Iterator[tuple[str, Any]]) -> None:
        """Replace all weights by vLLM's layer-wise reload, the only safe way in.

        A live linear layer on a CPU holds packed weights and no longer the plain ones."""
        model = self.get_model()
        if not hasattr(self, "_headrace_tied"):
            self._headrace_tied = _tied_layers(model)
        _forget_failed_load(model)
        self.reload_weights(weights_iterator=tensors)
        for follower, owner in self._headrace_tied:
            follower.weight = owner.weight
            follower.quant_method.process_weights_after_loading(follower)


def _tied_layers(model: Any) -> list[tuple[Any, Any]]:
    """Return (follower, owner) of layers that share a weight, such as a tied head.

    The reload fills the owner only, and on a CPU the follower has packed a copy of the old weight
    into its matrix product: without being tied again it would answer from it."""
    owners: dict[int, Any] = {}
    pairs: list[tuple[Any, Any]] = []
    for layer in model.modules():
        weight = layer._parameters.get("weight") if hasattr(layer, "_parameters") else None
        if weight is None or not weight.numel():
            continue
        owner = owners.setdefault(id(weight), layer)
        if owner is not layer and hasattr(layer, "quant_method"):
            pairs.append((layer, owner))
    return pairs


def _forget_failed_load(model: Any) -> None:
    """Reset layers of a failed load, whose buffers are of a file that did not fit."""
    from vllm.model_executor.model_loader.reload.layerwise import (
        get_layerwise_info,
        initialize_online_processing,
        restore_layer_on_meta,
    )

    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            info.loaded_weights.clear()
            restore_layer_on_meta(layer, info)
            initialize_online_processing(layer)
