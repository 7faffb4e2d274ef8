"""What the torch engine's own thread must not wait for."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from generators.engine import NO_VERSION, WeightsRefusedError
from generators.engines.model_files import read_config, weight_layout
from generators.engines.torch_engine import TorchEngine
from generators.engines.weights import WeightLayout


async def test_a_file_may_go_while_a_step_is_computed(
    model_folder: Path, weight_files: list[Path], tmp_path: Path
) -> None:
    """A long prefill takes longer than three updates, after which the learner removes a version."""
    model, path = str(model_folder), tmp_path / "v1.safetensors"
    shutil.copy(weight_files[1], path)
    layout = weight_layout(model, read_config(model))
    engine = TorchEngine(model, layout, end_token_ids=(), max_model_len=32)
    await engine.start()
    ends = threading.Event()
    step = engine._thread.submit(ends.wait)
    while not step.running():
        await asyncio.sleep(0.001)
    load = asyncio.create_task(engine.load_weights(path, 1))
    while not engine._thread._work_queue.qsize():
        await asyncio.sleep(0.001)
    path.unlink()
    ends.set()
    await load
    assert engine.version == 1
    await engine.stop()


async def test_a_file_that_goes_before_it_is_read_is_refused(
    model_folder: Path, weight_files: list[Path], tmp_path: Path
) -> None:
    """As one that was never there: the owner removes it between the check and the load."""
    model, path = str(model_folder), tmp_path / "v1.safetensors"
    shutil.copy(weight_files[1], path)

    class LateLayout(WeightLayout):
        def mismatch(self, path: Path) -> str | None:
            reason = super().mismatch(path)
            path.unlink()
            return reason

    layout = weight_layout(model, read_config(model))
    late = LateLayout(layout.shapes, layout.tied)
    engine = TorchEngine(model, late, end_token_ids=(), max_model_len=32)
    await engine.start()
    with pytest.raises(WeightsRefusedError, match=r"(?i)no such file"):
        await engine.load_weights(path, 1)
    assert engine.version == NO_VERSION
    await engine.stop()
