"""A quantized generator samples from each version that it loads, near the policy's own numbers."""

from pathlib import Path

import pytest
import torch

from generators.engine import GenerationRequest
from generators.engines.model_files import read_config, weight_layout
from generators.engines.vllm_engine import VllmEngine, VllmSettings
from tests.generators.test_engine_contract import flat, reference


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.timeout(600)
async def test_each_version_is_quantized_as_it_loads(
    model_folder: Path, weight_files: list[Path]
) -> None:
    model, prompt = str(model_folder), [3, 4, 5, 6, 7]
    settings = VllmSettings(
        model, 64, (), max_num_seqs=2, dtype="bfloat16", quantization="fp8", on_gpu=True,
        gpu_memory_utilization=0.2,
    )  # fmt: skip
    engine = VllmEngine(settings, weight_layout(model, read_config(model)))
    await engine.start()
    try:
        for version, path in enumerate([*weight_files, weight_files[0]]):
            await engine.load_weights(path, version)
            request = GenerationRequest(str(version), prompt, max_tokens=40, seed=version)
            deltas = [delta async for delta in engine.generate(request)]
            tokens, logprobs, versions = flat(deltas)
            assert set(versions) == {version}
            far = []
            for file in (path, *(other for other in weight_files if other != path)):
                wanted = reference(file, prompt + tokens)[len(prompt) - 1 : -1]
                found = [float(row[token]) for row, token in zip(wanted, tokens, strict=True)]
                pairs = zip(found, logprobs, strict=True)
                far.append(sum(abs(own - sampled) for own, sampled in pairs) / len(tokens))
            assert 1e-4 < far[0] < 0.3  # quantized, and of these weights
            assert far[1] > 3 * far[0]
    finally:
        await engine.stop()
