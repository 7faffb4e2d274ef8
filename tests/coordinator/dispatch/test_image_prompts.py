"""Images of prompts in the coordinator: recorded with their grids, decoded once, stored by another
thread; a bad one costs its row."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

import msgspec
import pytest
from PIL import Image

from coordinator.dispatch import prompts as module
from coordinator.dispatch.prompts import AHEAD, Prompts
from coordinator.hub import FETCHES, STORING_S, Hub
from headrace.data.media import MediaStore, digest_of, open_rgb
from headrace.errors import StorageBlockedError
from headrace.host.install import ROOT
from tasks.procedural.shapes import draw
from tests.coordinator.stage import GENERATOR, Stage, staged
from tests.coordinator.test_loop import run_config
from tests.learner.models.pictures import lacks

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
MODEL = ROOT / "recipes" / "models" / "shapes-cold"
GOOD = draw({"red": (0, 0, 1, 1)})
T = TypeVar("T")


def prompts_over(folder: Path, images: list[str], *, urls: bool = False) -> Prompts:
    """Rows with one image each, and, without `urls`, one of 112 x 56 pixels in front."""
    (folder / "good.png").write_bytes(GOOD)
    (folder / "cut.png").write_bytes(draw({"red": (0, 0, 1, 2)})[:70])
    Image.new("RGB", (112, 56)).save(folder / "wide.png")
    files = {"asked": "count", "held": "box red"}
    for name, question in files.items():
        rows = [
            {"prompt": f"<image>{question} {n}", "answer": "1", "images": [image]}
            for n, image in enumerate(images if urls else ["wide.png", *images])
        ]
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = run_config(
        model={"path": str(MODEL)},
        task={
            "kind": "dataset", "path": str(folder / "asked.jsonl"),
            "eval_path": str(folder / "held.jsonl"),
            "max_prompt_length": 64, "max_response_length": 12, "image_urls": urls,
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
    groups = stage.hub.account.groups
    (group,) = groups.values()
    assert told == []
    groups[group.group_id] = msgspec.structs.replace(group, processor="another")
    generation._processor = ""
    await generation._issue_group()
    await generation._issue_group()
    ((level, kind, text),) = told
    assert (level, kind) == ("warning", "processor_changed")
    assert text.startswith("images are processed by Qwen3VLProcessor of transformers ")
    assert text.endswith(", and were by another")
    stage.hub.router.close()
    stage.store.close()


class SlowServer:
    """A server of this machine that sends no image before `opens` is set, and has none of that
    name at /gone. `asked`: the paths of requests so far."""

    def __init__(self) -> None:
        self.opens, self.asked = Event(), list[str]()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """One reply."""
                server.asked.append(self.path)
                if is_there := not self.path.startswith("/gone"):
                    server.opens.wait(20)
                self.send_response(200 if is_there else 404)
                self.end_headers()
                self.wfile.write(GOOD if is_there else b"")

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture(name="slow")
def _slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowServer]:
    monkeypatch.setenv("NO_PROXY", "*")
    slow = SlowServer()
    with slow.http:
        Thread(target=slow.http.serve_forever, daemon=True).start()
        yield slow
        slow.opens.set()
        slow.http.shutdown()


def drawn(draw_prompts: Callable[[], T]) -> T:
    """What is drawn once the images are there."""
    for _ in range(2000):
        try:
            return draw_prompts()
        except BlockingIOError:
            time.sleep(0.01)
    raise AssertionError("the images never came")


def test_rows_behind_urls_are_fetched_ahead_and_drawn_in_their_order(
    tmp_path: Path, slow: SlowServer
) -> None:
    prompts = prompts_over(tmp_path, [f"{slow.url}/{n}" for n in range(40)], urls=True)
    rows = [prompts._source.row_at(position) for position in range(3)]
    for _ in range(2000):
        with pytest.raises(BlockingIOError, match=f"^{re.escape(rows[0].id)}$"):
            prompts.next_group(0, 0, 0)
        if len(slow.asked) >= AHEAD:
            break
        time.sleep(0.01)
    with pytest.raises(BlockingIOError):
        prompts.next_group(0, 0, 0)
    assert len(set(slow.asked)) == len(slow.asked) == AHEAD
    slow.opens.set()
    groups = [drawn(partial(prompts.next_group, position, 0, 0)) for position in range(3)]
    assert [(group.position, group.prompt_id) for group in groups] == [
        (position, row.id) for position, row in enumerate(rows)
    ]
    assert all(group.media[0].digest == digest_of(GOOD) for group in groups)
    assert [g.position for g in drawn(partial(prompts.eval_groups, 0, 0))] == list(range(9))
    # Nothing is kept of what was drawn.
    assert not prompts._reads.keys() & {row.id for row in rows}
    assert len(prompts._reads) < AHEAD


def test_a_row_whose_image_is_gone_is_told_once_while_the_next_is_awaited(
    tmp_path: Path, slow: SlowServer
) -> None:
    gone = [f"{slow.url}/gone{n}" for n in range(5)]
    prompts = prompts_over(tmp_path, [*gone, f"{slow.url}/good"], urls=True)

    def is_good(position: int) -> bool:
        return "/good" in str(prompts._source.row_at(position).prompt)

    first = next(filter(is_good, count())) + 1
    good = next(filter(is_good, count(first)))
    skipped = [prompts._source.row_at(position).id for position in range(first, good)]
    last = prompts._source.row_at(good).id
    for _ in range(2000):
        with pytest.raises(BlockingIOError) as awaited:
            prompts.next_group(first, 0, 0)
        if str(awaited.value) == last:
            break
        time.sleep(0.01)
    slow.opens.set()
    assert drawn(partial(prompts.next_group, first, 0, 0)).position == good
    told = [line.partition(", ")[0] for line in prompts.unasked]
    assert told == [f"skipped: row {row}" for row in skipped]
    assert all("404" in line for line in prompts.unasked)


async def test_a_slow_server_holds_nobody_up(tmp_path: Path, slow: SlowServer) -> None:
    """The coordinator serves its peers, and names the wait, before an image has come."""
    prompts = prompts_over(tmp_path, [f"{slow.url}/{n}" for n in range(40)], urls=True)
    async with staged(prompts._config, tmp_path / "run") as stage:
        phases, hub = stage.coordinator.phases, stage.hub
        loaded = stage.loaded()
        assert loaded is not None
        await stage.say(GENERATOR, loaded)
        assert phases.phase == "evaluating"
        for _ in range(2000):
            await phases.advance()
            if len(slow.asked) == 9:
                break
            await asyncio.sleep(0.01)
        assert len(slow.asked) == 9
        await stage.coordinator._beat()
        await phases.advance()
        assert not slow.opens.is_set()
        assert not hub.account.groups
        first = prompts._source.eval_rows(1)[0].id
        words = [wait.words for wait in stage.coordinator.waits.now()]
        assert f"images of row {first} ({FETCHES})" in words
        slow.opens.set()
        for _ in range(2000):
            await phases.advance()
            if hub.account.groups:
                break
            await asyncio.sleep(0.01)
        assert len(hub.account.groups) == 9
        await phases.advance()
        assert not hub.troubles.waits


async def test_an_evaluation_that_goes_on_asks_each_row_once(tmp_path: Path) -> None:
    """One row's image comes back over a restart, and the others' are gone."""
    prompts = prompts_over(tmp_path, ["good.png", "late.png", "good.png"])
    stage = Stage(prompts._config, tmp_path / "run")
    evaluation, groups = stage.coordinator.parts.evaluation, stage.hub.account.groups
    for issued in (3, 4):
        evaluation.start("before")
        await evaluation._issue()
        assert len(groups) == len({group.prompt_id for group in groups.values()}) == issued
        assert evaluation.progress() == (0, issued)
        if issued == 3:
            (tmp_path / "good.png").rename(tmp_path / "late.png")
    stage.hub.router.close()
    stage.store.close()
