"""The torch engine loads what it has places for, or says that it does not."""

from pathlib import Path

import pytest

from generators.engine import NO_VERSION, WeightsRefusedError
from generators.engines.model_files import read_config, weight_layout
from generators.engines.torch_engine import TorchEngine
from tests.learner.models.families import save_family


async def test_weights_that_no_layer_would_take_are_refused(tmp_path: Path) -> None:
    """Experts, many weights in a file and one in memory, would stay the old ones."""
    model = str(save_family("qwen3_moe", tmp_path))
    layout = weight_layout(model, read_config(model))
    engine = TorchEngine(model, layout, end_token_ids=(), max_model_len=32)
    await engine.start()
    with pytest.raises(WeightsRefusedError, match=r"no model\.layers\.0\.mlp\.experts\.0\.down_"):
        await engine.load_weights(tmp_path / "model.safetensors", 1)
    assert engine.version == NO_VERSION
    await engine.stop()
