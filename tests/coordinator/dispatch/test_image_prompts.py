"""Images of prompts in the coordinator: recorded with their grids, decoded once, stored by another
thread; a bad one costs its row."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from PIL import Image

from coordinator.dispatch import prompts as module
from coordinator.dispatch.prompts import Prompts
from coordinator.hub import STORING_S, Hub
from headrace.data.media import MediaStore, digest_of, open_rgb
from headrace.errors import StorageBlockedError
from headrace.host.install import ROOT
from tasks.procedural.shapes import draw
from tests.coordinator.stage import Stage
from tests.coordinator.test_loop import run_config
from tests.learner.models.pictures import lacks

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
MODEL = ROOT / "recipes" / "models" / "shapes-cold"
GOOD = draw({"red": (0, 0, 1, 1)})


def prompts_over(folder: Path, images: list[str]) -> Prompts:
    """Rows with one image each, and one of 112 x 56 pixels in front."""
    (folder / "good.png").write_bytes(GOOD)
    (folder / "cut.png").write_bytes(draw({"red": (0, 0, 1, 2)})[:70])
    Image.new("RGB", (112, 56)).save(folder / "wide.png")
    files = {"asked": "count", "held": "box red"}
    for name, question in files.items():
        rows = [
            {"prompt": f"<image>{question} {n}", "answer": "1", "images": [image]}
            for n, image in enumerate(["wide.png", *images])
        ]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = run_config(
        model={"path": str(MODEL)},
        task={
            "kind": "dataset", "path": str(folder / "asked.jsonl"),
            "eval_path": str(folder / "held.jsonl"),
            "max_prompt_length": 64, "max_response_length": 12,
        },
        reward={"kind": "number"},
        evaluation={"num_prompts": 9},
    )  # fmt: skip
    return Prompts(config, MediaStore(folder / "media"))


def test_a_group_names_grid_and_processor(tmp_path: Path) -> None:
    group = prompts_over(tmp_path, []).next_group(0, 0, 0)
    (run,) = group.media
    assert run.grid == (1, 4, 8)
    assert run.end - run.start == 4 * 8 // 4
    assert group.processor.startswith("Qwen3VLProcessor of transformers ")


def test_an_image_is_decoded_once_and_stored_by_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, decoded = prompts_over(tmp_path, ["good.png"] * 3), list[str]()
    store = prompts.media
    assert store is not None

    def opened(data: bytes) -> Any:
        decoded.append(digest_of(data))
        return open_rgb(data)

    monkeypatch.setattr(module, "open_rgb", opened)
    for position in (0, 1, 2, 3, 0):
        prompts.next_group(position, 0, 0)
        assert not store.folder.exists()
    assert len(decoded) == len(set(decoded)) == 2
    store.write()
    assert not store.waits
    assert {path.name for path in store.folder.iterdir()} == set(decoded)
    prompts.next_group(0, 0, 0)
    assert not store.waits


def test_a_row_with_a_bad_image_is_skipped_and_told(tmp_path: Path) -> None:
    prompts = prompts_over(tmp_path, ["cut.png", "good.png", "gone.png"])
    groups = [prompts.next_group(position, 0, 0) for position in range(4)]
    assert {group.media[0].grid for group in groups} == {(1, 4, 8), (1, 4, 4)}
    assert len(prompts.eval_groups(0, 0)) == 2
    told = [line.partition(", ")[2] for line in prompts.unasked]
    assert all(line.startswith("skipped: row ") for line in prompts.unasked)
    assert min(told.count(line) for line in told) > 1
    damaged, gone = sorted(set(told), key=lambda line: "gone" in line)
    assert damaged.startswith("image 1: the image is damaged")
    assert "gone.png' cannot be read" in gone


def test_a_row_with_an_images_token_in_its_text_is_skipped_and_told(tmp_path: Path) -> None:
    prompts = prompts_over(tmp_path, [])
    parts = [{"type": "image", "image": GOOD}, {"type": "text", "text": "<|image_pad|>?"}]
    row = replace(prompts._source.row_at(0), prompt=[{"role": "user", "content": parts}])
    assert prompts._usable(row) is None
    assert prompts.unasked == [f"skipped: row {row.id}, 1 images, but 2 placeholders in the prompt"]


async def test_a_frozen_disk_holds_nobody_up(tmp_path: Path) -> None:
    hub, store, thaws = Hub.__new__(Hub), MediaStore(tmp_path / "media"), Event()
    hub._storing = None
    put, loop = store.put, asyncio.get_running_loop()

    def frozen(data: bytes) -> str:
        thaws.wait(60)
        return put(data)

    store.put = frozen  # type: ignore[method-assign]
    store.later(digest_of(GOOD), GOOD)
    for longest in (STORING_S + 5, 0.4):
        began = loop.time()
        with pytest.raises(StorageBlockedError, match=r"the disk of .*media to take images"):
            await hub.store_images(store)
        assert loop.time() - began < longest
    thaws.set()
    while store.waits:
        await asyncio.sleep(0.01)
    await hub.store_images(store)
    assert store.read(digest_of(GOOD)) == GOOD


async def test_images_are_stored_behind_those_of_an_earlier_prompt(tmp_path: Path) -> None:
    """The disk has taken the others since, and nobody has asked for them again."""
    hub, store, thaws = Hub.__new__(Hub), MediaStore(tmp_path / "media"), Event()
    hub.__dict__["_storing"] = None
    put, other = store.put, draw({"red": (0, 0, 1, 2)})

    def frozen(data: bytes) -> str:
        thaws.wait(60)
        return put(data)

    store.put = frozen  # type: ignore[method-assign]
    store.later(digest_of(GOOD), GOOD)
    with pytest.raises(StorageBlockedError):
        await hub.store_images(store)
    thaws.set()
    assert hub._storing is not None
    await asyncio.wait([hub._storing])
    store.later(digest_of(other), other)
    await hub.store_images(store)
    assert store.read(digest_of(other)) == other


async def test_a_processor_that_changed_over_a_restart_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; the answers to older prompts go on."""
    prompts = prompts_over(tmp_path, [])
    stage = Stage(prompts._config, tmp_path / "run")
    generation, told = stage.coordinator.parts.generation, list[tuple[str, ...]]()
    monkeypatch.setattr(stage.hub, "incident", lambda *said: told.append(said))
    await generation._issue_group()
    (group,) = stage.hub.account.groups.values()
    assert told == []
    group.processor, generation._processor = "another", ""
    await generation._issue_group()
    await generation._issue_group()
    ((level, kind, text),) = told
    assert (level, kind) == ("warning", "processor_changed")
    assert text.startswith("images are processed by Qwen3VLProcessor of transformers ")
    assert text.endswith(", and were by another")
    stage.hub.router.close()
    stage.store.close()
