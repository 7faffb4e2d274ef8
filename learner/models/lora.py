"""Low-rank adapters (LoRA, arXiv 2106.09685): what trains instead of a model's own weights.

In: a loaded model and the adapters' shape. Out: the same model with adapters of `peft` inside, its
weights with adapters merged into them, and a folder that `peft` loads. Promises: nothing but
adapters and the value model's head has a gradient; an adapter that has learnt nothing changes
nothing; weights that leave have the names and the shapes of the model's files.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.config.sections.learner import AdapterConfig
from headrace.errors import UserError

FOLDER = "adapter"
"""Of the adapter in a model's folder of a checkpoint."""
_NAME = "default"
_FILE = "adapter_model.safetensors"


def add_adapters(model: PreTrainedModel, config: AdapterConfig, saved: Path | None) -> None:
    """Put adapters beside linear layers of a model's decoder, in place, and freeze the rest but a
    value model's head. `saved`: the folder of a checkpoint's model; None: adapters that change
    nothing. UserError where `targets` names no layer, or where the adapter is of other layers."""
    # Its import takes a second, which runs without adapters do without.
    from peft import LoraConfig, TaskType, inject_adapter_in_model

    peft_config = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=_linear_layers(model, config),
        task_type=TaskType.TOKEN_CLS if hasattr(model, "score") else TaskType.CAUSAL_LM,
        base_model_name_or_path=model.name_or_path,
    )
    inject_adapter_in_model(peft_config, model, adapter_name=_NAME)
    if hasattr(model, "score"):
        model.score.requires_grad_(True)
    if saved is not None:
        folder, trained = saved / FOLDER, adapter_weights(model)
        kept = load_file(folder / _FILE)
        if {n: x.shape for n, x in kept.items()} != {n: p.shape for n, p in trained.items()}:
            raise UserError(
                f"the adapter in {folder} is of other layers or of another rank than learner.lora "
                "says"
            )
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(kept[name])


def _linear_layers(model: PreTrainedModel, config: AdapterConfig) -> list[str]:
    """Names of the decoder's linear layers that get an adapter."""
    decoder: Any = model.base_model.get_decoder()
    inside = set(decoder.modules())
    linear = [n for n, m in model.named_modules() if type(m) is nn.Linear and m in inside]
    found = [*filter(config.adapts, linear)]
    if not found:
        known = ", ".join(sorted({n.split(".")[-1] for n in linear if AdapterConfig().adapts(n)}))
        raise UserError(f"learner.lora.targets = {config.targets} names no layer; known: {known}")
    return found


def share_base(model: nn.Module, base: nn.Module) -> None:
    """Let a model's frozen weights be those of `base` that have the same name and shape, so that
    memory holds them once. What is its own goes to their device."""
    frozen = {_plain(name): weight for name, weight in _frozen(base)}
    for name, weight in _frozen(model):
        twin = frozen.get(_plain(name))
        if twin is not None and twin.shape == weight.shape:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, twin)
    model.to(next(base.parameters()).device)


def _frozen(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    named = model.named_parameters(remove_duplicate=False)
    return [(name, weight) for name, weight in named if not weight.requires_grad]


def merged_state(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model's state by its names without adapters, W + (alpha / rank) B A where there is one.
    They are merged in float32, onto the CPU: a GPU may lack room. A head that trains is copied."""
    if not hasattr(model, "peft_config"):
        return state
    from peft.tuners.lora import LoraLayer

    state = {_plain(n): x for n, x in state.items() if ".lora_" not in n}
    adapted: list[tuple[str, Any]] = [
        (name, layer) for name, layer in model.named_modules() if isinstance(layer, LoraLayer)
    ]
    for name, layer in adapted:
        a, b = (part[_NAME].weight.detach().float() for part in (layer.lora_A, layer.lora_B))
        weight = layer.get_base_layer().weight.detach()
        merged = weight.float() + layer.scaling[_NAME] * (b @ a)
        state[f"{name}.weight"] = merged.to(weight.dtype).cpu()
    return state | {n: x.clone() for n, x in state.items() if n.startswith("score.")}


def save_adapter(model: Any, folder: Path, trained: Mapping[str, Tensor]) -> None:
    """Write what trains as a folder that `peft.PeftModel.from_pretrained` loads.

    `trained`: a copy of the model's `adapter_weights` on the CPU."""
    config = copy.copy(model.peft_config[_NAME])
    # Told earlier, peft would train a copy of the head and not the head.
    config.modules_to_save = ["score"] if hasattr(model, "score") else None
    config.save_pretrained(folder)
    save_file(dict(trained), folder / _FILE)


def adapter_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return what trains by the names of peft's files."""
    return {
        "base_model.model." + name.replace(f".{_NAME}.", "."): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _plain(name: str) -> str:
    return name.replace(".base_layer.", ".")
