"""Answers whose keys and values do not fit at once are preempted, counted, and go on."""

import asyncio
from pathlib import Path

import pytest

from generators.engine import GenerationRequest, TokenDelta
from generators.engines.model_files import read_config, weight_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings


@pytest.mark.vllm
@pytest.mark.slow
async def test_preemptions_and_what_is_computed_twice_are_counted(
    model_folder: Path, weight_files: list[Path]
) -> None:
    """Of three answers of 7 blocks there is room for 12 blocks, of 32 KiB each: one gives way when
    it holds over 100 tokens."""
    model = str(model_folder)
    settings = VllmSettings(model, 256, (), max_num_seqs=3, kv_cache_gib=12 / 2**15)
    engine = VllmEngine(settings, weight_layout(model, read_config(model)))

    async def ask(name: str) -> list[TokenDelta]:
        request = GenerationRequest(name, [3, 4, 5, 6, 7], max_tokens=200, seed=ord(name))
        return [delta async for delta in engine.generate(request)]

    await engine.start()
    try:
        await engine.load_weights(weight_files[0], 0)
        assert (engine.preempted, engine.prefill_tokens) == (0, 0)
        together = await asyncio.gather(*map(ask, "abc"))
        await engine.load_weights(weight_files[0], 1)
        assert engine.preempted >= 1
        assert engine.prefill_tokens >= 15 + 100
        for name, deltas in zip("abc", together, strict=True):
            alone = [token for delta in await ask(name) for token in delta.token_ids]
            assert [token for delta in deltas for token in delta.token_ids] == alone
    finally:
        await engine.stop()
