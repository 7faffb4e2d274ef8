"""A small recipe and a model folder that checks accept, for tests of the command line."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.loading.recipe import build, merge_overrides
from headrace.config.sections.run import RunConfig

RECIPE = """\
name = "small"
[model]
path = "{model}"
[task]
kind = "chain_sums"
max_prompt_length = 80
max_response_length = 240
[schedule]
window = 60
batch_windows = 8
[algorithm.advantages]
kind = "egae"
[algorithm.value]
[generator]
engine = "fake"
[dashboard]
enabled = false
[stop]
updates = 2
"""


def write_model(folder: Path, *, parameters: int = 1000, tensor: str = "weight") -> Path:
    """A folder with a config.json and a safetensors file of one tensor, so many float32 zeros."""
    folder.mkdir(parents=True)
    config = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "intermediate_size": 16,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    facts = {"dtype": "F32", "shape": [parameters], "data_offsets": [0, 4 * parameters]}
    header = json.dumps({tensor: facts}).encode()
    data = struct.pack("<Q", len(header)) + header + bytes(4 * parameters)
    (folder / "model.safetensors").write_bytes(data)
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe file whose model folder exists."""
    model = write_model(tmp_path / "model")
    path = tmp_path / "small.toml"
    path.write_text(RECIPE.format(model=model))
    return path


@pytest.fixture
def make_config() -> Callable[..., RunConfig]:
    """A configuration with overrides, without files."""

    def make(*overrides: str) -> RunConfig:
        table: dict[str, Any] = {
            "model": {"path": "model"},
            "task": {"kind": "chain_sums", "max_prompt_length": 80, "max_response_length": 240},
            "schedule": {"window": 60},
            "algorithm": {"advantages": {"kind": "egae"}, "value": {}},
        }
        merge_overrides(table, overrides)
        return build(table, source="test")

    return make
