"""Published adapters as vLLM loads them.

In: versions of an adapter, safetensors files of `peft`'s names, and its shape. Out: vLLM's
`LoRARequest`. Promise: there is one adapter at a time, so that requests under way sample from a new
version from their next token on, as they do with whole weights.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from generators.engines.weights import WeightLayout
from headrace.config.sections.learner import AdapterConfig

PREFIX = "base_model.model."
NAME, ID = "policy", 1


def adapter_layout(model: WeightLayout, adapter: AdapterConfig) -> WeightLayout:
    """Return names and shapes of an adapter beside the model's linear layers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in model.shapes.items():
        layer, _, kind = name.rpartition(".")
        inside = kind == "weight" and len(shape) == 2 and "layers" in layer.split(".")
        if inside and adapter.adapts(layer):
            outputs, inputs = shape
            shapes[f"{PREFIX}{layer}.lora_A.weight"] = (adapter.rank, inputs)
            shapes[f"{PREFIX}{layer}.lora_B.weight"] = (outputs, adapter.rank)
    return WeightLayout(shapes)


class VllmAdapter:
    """The folder of `peft` that the engine process reads, with one version in it."""

    def __init__(self, adapter: AdapterConfig, layout: WeightLayout) -> None:
        """`layout`: the adapter's (`adapter_layout`)."""
        self._adapter = adapter
        self._folder = TemporaryDirectory(prefix="headrace-adapter-")
        shape = {
            "peft_type": "LORA",
            "r": adapter.rank,
            "lora_alpha": adapter.alpha,
            "target_modules": sorted({name.split(".")[-3] for name in layout.shapes}),
            "bias": "none",
        }
        (Path(self._folder.name) / "adapter_config.json").write_text(json.dumps(shape))

    @property
    def engine_args(self) -> dict[str, Any]:
        """Settings of the engine that make room for the adapter."""
        from vllm.config.lora import MaxLoRARanks

        room = min(rank for rank in get_args(MaxLoRARanks) if rank >= self._adapter.rank)
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room}

    def offer(self, path: Path) -> tuple[str, int, str]:
        """Put a version into the folder; return name, number and folder for the workers' load."""
        link = Path(self._folder.name) / "adapter_model.safetensors"
        link.unlink(missing_ok=True)
        link.symlink_to(path.resolve())
        return NAME, ID, self._folder.name

    def request(self) -> Any:
        """Return vLLM's name of the loaded version."""
        from vllm.lora.request import LoRARequest

        return LoRARequest(NAME, ID, self._folder.name)

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()
