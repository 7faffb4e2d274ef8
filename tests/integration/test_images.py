"""A run whose prompts have images: its generator dies in the middle, and every image is accounted
for, from the drawing to the exports."""

import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from aiohttp import web

from headrace.data.coordinates import mean_iou
from headrace.data.media import image_bytes, open_rgb
from headrace.protocol.records.record_types import GroupIssued
from headrace.run_files.run_folder import MEDIA
from storage.audit import audit_run
from tasks.procedural.shapes import CELL, COLOURS
from tests.integration.audit import records_of
from tests.integration.runs import REPOSITORY, Run, headrace
from tests.learner.models.pictures import lacks
from tests.rewards.judging.scripted import Body, said, scripted_judge

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(lacks()), reason=lacks()),
]
RECIPE = REPOSITORY / "recipes" / "shapes.toml"
UPDATES, WARMUP = 7, 2
BOX = re.compile(r"[0-4](?:,[0-4]){3}")


class CaptionJudge(NamedTuple):
    """A server of captions that says yes to those that name as many rectangles as it sees, and
    what it saw: image and text."""

    url: str
    seen: list[tuple[bytes, str]]


@pytest.fixture(scope="module")
def judge() -> Iterator[CaptionJudge]:
    """It serves from a thread."""
    seen = list[tuple[bytes, str]]()

    async def script(body: Body) -> web.StreamResponse:
        image, words = body["messages"][-1]["content"]
        seen.append((image_bytes(image, Path()), words["text"]))
        right = len(words["text"].split()) == len(scene(seen[-1][0]))
        best, worst = ("yes", "no") if right else ("no", "yes")
        return said(best, {best: -0.1, worst: -2.4})

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = scripted_judge(script)
    url = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(60).url
    yield CaptionJudge(url, seen)
    asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, judge: CaptionJudge) -> Iterator[Run]:
    """Its generator was killed; a judge audits answers."""
    options = f'url="{judge.url}",model="judge",images=true,prompt="{{response}}"'
    run = Run(
        tmp_path_factory.mktemp("shapes") / "runs",
        f"stop.updates={UPDATES}",
        "schedule.batch_windows=64",
        "evaluation.num_prompts=24",
        "evaluation.before=false",
        "evaluation.every_updates=null",
        "checkpoint.every_updates=1",
        f"checkpoint.keep_last={UPDATES}",
        "generator.kv_cache_gib=0.125",
        "storage.commit_interval_ms=20",
        "dashboard.enabled=false",
        f'reward.sources.judged={{kind="judge",timeout_s=60,options={{{options}}}}}',
        'reward.audit={source="judged",share=0.5}',
        recipe=RECIPE,
    )
    try:
        run.until(lambda: run.applied() >= WARMUP + 1)
        os.kill(run.supervised("generator-0"), signal.SIGKILL)
        assert run.wait() == 0, run.text()
        yield run
    finally:
        run.end()


def named(run: Run) -> list[str]:
    """The image of each group, by the journal."""
    groups = [record for record in records_of(run.run_dir) if isinstance(record, GroupIssued)]
    assert all(len(group.media) == 1 for group in groups)
    return [group.media[0].digest for group in groups]


def files(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run.run_dir / MEDIA).iterdir()}


def test_the_books_are_clean_and_each_image_is_stored_once(finished: Run) -> None:
    """No part of a file is left, and nothing that no prompt shows."""
    report = audit_run(finished.run_dir)
    assert report.findings == []
    assert report.balanced
    assert report.counts["trained_policy"] > 100
    stored = files(finished)
    assert set(stored) == set(named(finished))
    assert all(hashlib.sha256(data).hexdigest() == name for name, data in stored.items())
    assert len(stored) > 50


def scene(data: bytes) -> dict[str, tuple[int, ...]]:
    """The box of each colour, in cells, by the pixels."""
    pixels, found = np.asarray(open_rgb(data)), {}
    for colour, value in COLOURS.items():
        rows, columns = np.nonzero((pixels == value).all(axis=2))
        if rows.size:
            ends = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
            found[colour] = tuple(int(end) // CELL for end in ends)
    return found


def test_an_answer_earns_what_it_says_of_its_image(finished: Run) -> None:
    """What is right is read off the stored pixels again, and the reward follows from the text."""
    records, stored = records_of(finished.run_dir), files(finished)
    groups = {r.group_id: r for r in records if isinstance(r, GroupIssued)}
    rows = finished.ask(
        "select group_id, prompt, answer, response, reward from trajectories "
        "where status in ('finished', 'truncated')"
    )
    asked = Counter[tuple[str, bool]]()
    for group_id, prompt, answer, response, reward in rows:
        boxes = scene(stored[groups[group_id].media[0].digest])
        (question,) = re.findall(r"count|box [a-z]+|describe", prompt)
        if question == "describe":
            continue  # What a model of preferences says has a test of its own.
        if question == "count":
            assert answer == str(len(boxes))
            assert reward == float(response.strip() == answer), response
        else:
            wanted = boxes[question.split()[1]]
            assert answer == ",".join(map(str, wanted))
            given = [tuple(map(int, response.split(",")))] if BOX.fullmatch(response) else []
            assert reward == pytest.approx(mean_iou(given, [wanted])), response
        asked[question.split()[0], reward > 0] += 1
    assert min(asked.values()) > 10
    assert len(asked) == 4


def test_learner_and_sampler_agree(finished: Run) -> None:
    """In the first update of the policy, behind those of the value model alone."""
    ((p99, worst, count),) = finished.ask(
        "select quantile_cont(abs(learner_logprob - logprob), 0.99), "
        "max(abs(learner_logprob - logprob)), count(*) from tokens "
        f"where source = 'policy' and trained_at_update = {WARMUP + 1}"
    )
    print(f"{p99:.1e} at the 99th percentile, {worst:.1e} of {count} at most")
    assert count > 50
    assert p99 <= 1e-4


@pytest.mark.parametrize("kind", ["sft", "preferences"])
def test_exports_have_the_images(finished: Run, kind: str, tmp_path: Path) -> None:
    """As `datasets` reads them."""
    from datasets import Image, Sequence, load_dataset

    out = tmp_path / f"{kind}.parquet"
    done = headrace(
        "export", "latest", kind, "--schema", "trl", "--out", str(out), "--root",
        str(finished.root),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    read = load_dataset("parquet", data_files=str(out), split="train", cache_dir=str(tmp_path))
    assert len(read) > 3
    read = read.cast_column("images", Sequence(Image()))
    stored = {hashlib.sha256(data).hexdigest() for data in files(finished).values()}
    for row in read:
        (image,) = row["images"]
        assert image.size == (56, 56)
        image.load()
    raw = read.cast_column("images", Sequence(Image(decode=False)))
    assert {hashlib.sha256(row["images"][0]["bytes"]).hexdigest() for row in raw} <= stored


def test_a_replay_comes_to_the_same(finished: Run) -> None:
    """Of the last update, with its models, which see the run's images again."""
    done = headrace(
        "replay", str(finished.run_dir), "--json", "--update", str(UPDATES)
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    quantities = json.loads(done.stdout)["quantities"]
    compared = {q["name"]: q["compared"] for q in quantities if q["source"] == "models"}
    assert min(compared[f"weights of the {name}"] for name in ("policy", "critic")) > 0
    assert {q["name"] for q in quantities if q["differing"]} == set()


def test_a_judge_sees_what_it_judges(finished: Run, judge: CaptionJudge) -> None:
    """Each answer goes to it with its image."""
    rows = finished.ask(
        "select audit_status, response, audit_reward from trajectories where purpose = 'train' "
        "and audit_source = 'judged' and status in ('finished', 'truncated')"
    )
    assert len(rows) > 5
    assert {status for status, _, _ in rows} == {"ok"}
    stored = set(files(finished).values())
    asked = {text.strip() for image, text in judge.seen if image in stored}
    assert {response.strip() for _, response, _ in rows} <= asked
    assert len({reward > 0.5 for _, _, reward in rows}) == 2


def test_a_damaged_image_and_a_lost_one_are_findings(finished: Run, tmp_path: Path) -> None:
    copy = tmp_path / finished.run_dir.name
    shutil.copytree(finished.run_dir, copy, ignore=shutil.ignore_patterns("checkpoints", "weights"))
    damaged, lost = sorted(set(named(finished)))[:2]
    path = copy / MEDIA / damaged
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (copy / MEDIA / lost).unlink()
    found = [finding for finding in audit_run(copy).findings if finding.kind == "image"]
    assert {finding.where for finding in found} == {damaged, lost}
    assert all("\n" not in finding.text for finding in found)
