"""The shape of a model, read from its folder without loading it.

In: a Hugging Face folder. Out: `ModelShape`. Reads config.json and the headers of weight files,
never a weight.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.host.hardware import MIB


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with gated feed-forward layers, as memory estimates use them."""

    parameters: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocabulary: int
    normalised_heads: bool = False
    """Queries and keys have norms of their own (Qwen3)."""
    context: float = math.inf
    """Maximum number of tokens of a sequence, if it is known."""
    head: int = 0
    """Numbers of an output layer that is not tied to the embeddings."""

    @property
    def query_width(self) -> int:
        """Numbers in a token's queries of one layer."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Numbers in a token's keys of one layer; its values have as many."""
        return self.kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, at two bytes a number."""
        return 2 * 2 * self.layers * self.key_width

    @property
    def layer_parameters(self) -> int:
        """Numbers in the matrices of a layer."""
        attention = 2 * self.hidden * (self.query_width + self.key_width)
        return attention + 3 * self.hidden * self.intermediate

    def first(self, layers: int | None) -> "ModelShape":
        """The shape of the model's first layers (None: all), without an output layer."""
        left_out = 0 if layers is None else max(0, self.layers - layers)
        parameters = self.parameters - left_out * self.layer_parameters - self.head
        return replace(self, layers=self.layers - left_out, parameters=parameters, head=0)

    def adapter_parameters(self, rank: int, targets: Sequence[str] | None) -> int:
        """Numbers of low-rank adapters beside the decoder's linear layers of these names (None:
        all)."""
        ends = {
            "q_proj": self.hidden + self.query_width,
            "k_proj": self.hidden + self.key_width,
            "v_proj": self.hidden + self.key_width,
            "o_proj": self.query_width + self.hidden,
            **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), self.hidden + self.intermediate),
        }
        return self.layers * rank * sum(ends.get(name, 0) for name in targets or ends)


def model_shape(folder: Path) -> ModelShape:
    """The shape of the model in a Hugging Face folder.

    Raises OSError, ValueError, KeyError or TypeError where the folder does not say.
    """
    config = json.loads((folder / "config.json").read_text())
    config = config.get("text_config", config)
    hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
    heads = int(config.get("num_attention_heads", 1))
    tensors = tensor_sizes(folder)
    shape = ModelShape(
        parameters=sum(tensors.values()),
        hidden=hidden,
        intermediate=int(config.get("intermediate_size", 4 * hidden)),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        layers=layers,
        vocabulary=int(config["vocab_size"]),
        normalised_heads=any(".q_norm." in name for name in tensors),
        context=config.get("max_position_embeddings") or math.inf,
        head=tensors.get("lm_head.weight", 0),
    )
    if tensors:
        return shape
    # Estimated from the matrices.
    embeddings = shape.vocabulary * shape.hidden
    head = 0 if config.get("tie_word_embeddings") else embeddings
    parameters = shape.layers * shape.layer_parameters + embeddings + head
    return replace(shape, parameters=parameters, head=head)


def weight_files(folder: Path) -> list[Path]:
    """A model's safetensors files. Mistral's folders hold all weights once more, `consolidated`."""
    files, own = sorted(folder.glob("*.safetensors")), {"model.safetensors"}
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        own = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    return [file for file in files if file.name in own] or files


def tensor_sizes(folder: Path) -> dict[str, int]:
    """Return the number of elements of each tensor, from the headers of a folder's safetensors."""
    header: dict[str, dict[str, list[int]]] = {}
    for file in weight_files(folder):
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header |= json.loads(stream.read(min(length, 64 * MIB)))
    header.pop("__metadata__", None)
    return {name: math.prod(tensor["shape"]) for name, tensor in header.items()}
