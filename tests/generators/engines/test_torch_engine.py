"""What the torch engine's own thread must not wait for."""

import asyncio
import shutil
import threading
from pathlib import Path

from generators.engines.model_files import read_config, weight_layout
from generators.engines.torch_engine import TorchEngine


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
