"""Settings that vLLM does not take are the user's mistake, said on one line."""

from pathlib import Path

import pytest

from generators.engines.model_files import read_config, weight_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings
from headrace.errors import UserError
from tests.generators.fixed_model import save_fixed_model


@pytest.mark.vllm
@pytest.mark.slow
async def test_more_positions_than_the_model_has(tmp_path: Path) -> None:
    model = str(save_fixed_model(tmp_path / "model"))
    settings = VllmSettings(model, 65, (), max_num_seqs=2, kv_cache_gib=0.1)
    engine = VllmEngine(settings, weight_layout(model, read_config(model)))
    with pytest.raises(UserError, match="max_model_len") as error:
        await engine.start()
    assert "\n" not in str(error.value)
