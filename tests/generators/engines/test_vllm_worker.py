"""Every worker of an engine answers for its own load."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from generators.engine import WeightsBrokenError
from generators.engines.vllm_engine import VllmEngine, VllmSettings
from generators.engines.vllm_worker import WeightLoader
from generators.engines.weights import WeightLayout
from headrace.config.sections.learner import AdapterConfig

WEIGHT = "model.layers.0.q_proj.lora_A.weight"


class Worker(WeightLoader):
    """A worker whose model takes what it is given, unless something `breaks` it."""

    def __init__(self, breaks: str) -> None:
        self.breaks, self.loaded = breaks, dict[str, torch.Tensor]()

    def headrace_replace(self, tensors: Any) -> None:
        self.loaded = dict(tensors)
        if self.breaks:
            raise RuntimeError(self.breaks)

    def headrace_adapt(self, name: str, number: int, folder: str) -> None:
        self.headrace_replace({})


class Core:
    """AsyncLLM with some workers, as far as a load asks it: as in vLLM's executor of several, an
    exception is raised before later answers are read, which the next call takes for its own."""

    errored = False
    output_processor = SimpleNamespace(request_states={})

    def __init__(self, *breaks: str) -> None:
        self.workers = [Worker(each) for each in breaks]
        self._answers: list[list[str | Exception]] = [[] for _ in breaks]
        self.engine_core = SimpleNamespace(
            pause_scheduler_async=self._nothing,
            call_utility_async=self._none_preempted,
            outputs_queue=asyncio.Queue(),
        )

    async def _nothing(self, **_options: object) -> None:
        return None

    async def _none_preempted(self, _method: str) -> list[int]:
        return [0, 0]

    async def resume_generation(self) -> None:
        return None

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[str]:
        for worker, answers in zip(self.workers, self._answers, strict=True):
            try:
                answers.append(getattr(worker, method)(*args))
            except Exception as error:  # as a worker of vLLM does
                answers.append(error)
        found = []
        for answers in self._answers:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise RuntimeError(f"Worker failed with error '{answer}'")
            found.append(answer)
        return found


@pytest.mark.parametrize("adapter", [None, AdapterConfig(publish="adapter")])
@pytest.mark.parametrize("breaks", [("a", "b"), ("", "b"), ("a", "")])
async def test_a_load_that_failed_leaves_no_answer_to_the_next(
    breaks: tuple[str, ...], adapter: AdapterConfig | None, tmp_path: Path
) -> None:
    path = tmp_path / "v1.safetensors"
    save_file({WEIGHT: torch.ones(2)}, path)
    engine = VllmEngine(
        VllmSettings("m", 32, (), tensor_parallel_size=2, adapter=adapter),
        WeightLayout({WEIGHT: (2,)}),
    )
    core: Any = Core(*breaks)
    engine._engine = core
    with pytest.raises(WeightsBrokenError):
        await engine.load_weights(path, 1)
    for worker in core.workers:
        worker.breaks = ""
    await engine.load_weights(path, 1)
    assert engine.version == 1
    core.workers[1].breaks = "later"
    with pytest.raises(WeightsBrokenError):
        await engine.load_weights(path, 2)
    assert engine.version == 1
    engine._engine = None
    await engine.stop()
