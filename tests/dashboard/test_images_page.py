"""Images on the page of trajectories: in the list, on the answer's card, with boxes over them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from dashboard.components.images import images_html, marks_of
from dashboard.reads.images import SMALL, picture, thumbnail
from headrace.config.sections.reward import SourceConfig
from headrace.data.media import MediaStore
from headrace.protocol.records import record_types as r
from headrace.protocol.token_spans import MediaRun, Span
from headrace.run_files.run_folder import MEDIA
from storage import queries
from storage.run_store import RunStore
from tasks.procedural.shapes import draw
from tests.dashboard.scripted_run import END, encode, make_config, write_tokenizer
from tests.dashboard.test_pages import TIMEOUT_S, html_of, page

RIGHT, ANSWERS = "0,0,2,2", ("1,1,3,3", "0,0,2,2")
BOX = SourceConfig.model_validate({"kind": "box", "options": {"largest": 4}})


def write_image_run(root: Path, *, digests: tuple[str, ...] | None = None) -> Path:
    """A run of one prompt with an image and two answers that name boxes."""
    write_tokenizer(root / "model")
    config = make_config(root, reward={"kind": "box", "options": {"largest": 4}})
    run_dir = root / "images-20260101-120000-beef"
    store = RunStore.create(run_dir, run_dir.name, config)
    if digests is None:
        digests = (MediaStore(run_dir / MEDIA).put(draw({"red": (0, 0, 2, 2)})),)
    records: list[Any] = [
        r.RunPhase(at=1.0, phase="training"),
        r.GroupIssued(
            at=2.0, group_id=0, prompt_id="p", position=0, purpose="train", prompt="box red",
            answer=RIGHT, info="{}", prompt_ids=np.array(encode("box red"), np.int32),
            media=[MediaRun(digest, 0, 1) for digest in digests],
            trajectory_ids=[0, 1], seeds=[1, 2],
        ),
    ]  # fmt: skip
    for key, answer in enumerate(ANSWERS):
        ids = [*encode(answer), END]
        records += [
            r.LeaseIssued(
                at=3.0, lease_id=key, trajectory_id=key, generator="g", start=0, version=0
            ),
            r.ChunkArrived(
                at=4.0, trajectory_id=key, lease_id=key, chunk_index=0, generator="g", start=0,
                token_ids=np.array(ids, np.int32), logprobs=np.zeros(len(ids), np.float32),
                spans=[Span(0, 0, len(ids))], finish="stop",
            ),
            r.TrajectoryEnded(at=5.0, trajectory_id=key, status="finished", length=len(ids)),
            r.RewardArrived(
                at=6.0, trajectory_id=key, status="ok", reward=1 / 7, correct=False, parts={},
                seconds=0.1, source="default",
            ),
        ]  # fmt: skip
    store.append(records)
    store.close()
    return run_dir


def opened(run_dir: Path, trajectory: int = 0) -> AppTest:
    test = AppTest.from_function(
        page, args=("trajectories", str(run_dir)), default_timeout=TIMEOUT_S
    )
    test.query_params["trajectory"] = str(trajectory)
    test.run()
    assert not test.exception
    return test


def test_the_image_of_a_prompt_with_both_boxes(tmp_path: Path) -> None:
    test = opened(write_image_run(tmp_path))
    html = html_of(test)
    assert html.count('<img src="data:image/png;base64,') == 1
    assert 'alt="Image 1 of the prompt. answer: 1,1,3,3; right: 0,0,2,2"' in html
    assert 'class="given" style="left:25.000%;top:25.000%;width:50.000%;height:50.000%"' in html
    assert 'class="wanted" style="left:0.000%;top:0.000%;width:50.000%;height:50.000%"' in html
    (list_of_rows,) = (frame.value for frame in test.dataframe)
    assert all(url.startswith("data:image/png;base64,") for url in list_of_rows["image"])


def test_a_run_of_texts_has_no_column_of_images(run_dir: Path) -> None:
    test = opened(run_dir, 5)
    assert "image" not in test.dataframe[0].value
    assert "<img" not in html_of(test)


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_an_image_that_cannot_be_read_is_a_line(tmp_path: Path, harm: str) -> None:
    run_dir = write_image_run(tmp_path)
    (file,) = (run_dir / MEDIA).iterdir()
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(b"<script>")
    test = opened(run_dir)
    found = re.search(r'<div class="hr-empty">Image 1: ([^<\n]*)</div>', html_of(test))
    assert found is not None
    assert ("cannot be read" if harm == "missing" else "is damaged") in found[1]
    assert test.dataframe[0].value["image"].isna().all()


def test_names_of_images_are_escaped(tmp_path: Path) -> None:
    html = html_of(opened(write_image_run(tmp_path, digests=("<b>x", "../../x"))))
    assert "<b>" not in html.replace("<b>1,", "")
    assert "Image 2: " in html


def marked(run_dir: Path, text: str, source: SourceConfig = BOX, **row: Any) -> Any:
    detail = queries.trajectory_detail(run_dir, 0)
    return marks_of(replace(detail, text=text, row=detail.row | row), source)


def test_what_is_drawn_is_what_the_reward_reads(tmp_path: Path) -> None:
    run_dir = write_image_run(tmp_path)
    files = queries.trajectory_detail(run_dir, 0).images
    odd = marked(run_dir, "[[3,3,1,1],[0,0,9,9],[0,0,4,1]]")
    html = images_html(files, odd)
    assert html.count('class="given" style') == 1
    assert "(2 of them cannot be drawn)" in html
    many = marked(run_dir, " and ".join(["0,0,1,1"] * 150))
    assert images_html(files, many).count('class="given" style') == 100
    point = SourceConfig.model_validate({"kind": "point", "options": {"largest": 4}})
    assert marked(run_dir, "1,3", point).given == [(1.0, 3.0)]
    assert "left:25.000%;top:75.000%;width:0;" in images_html(files, marked(run_dir, "1,3", point))
    thinking = {"kind": "box", "answer_marker": "#", "options": {"thought": "think"}}
    told = SourceConfig.model_validate(thinking)
    assert marked(run_dir, "<think>1,1,2,2</think># 5,5,6,6", told).given == [(5, 5, 6, 6)]
    sized = SourceConfig.model_validate({"kind": "box", "options": {"size_column": "size"}})
    in_pixels = marked(run_dir, "0,0,1,1", sized, info=json.dumps({"size": [4, 4]}))
    assert in_pixels.wanted == [(0, 0, 500, 500)]
    assert marked(run_dir, "0,0,1,1", answer="none") is None
    assert marked(run_dir, "0,0,1,1", SourceConfig()) is None
    assert 'class="given"' not in images_html([*files, *files], marked(run_dir, "0,0,1,1"))


def test_images_in_a_page_are_small(tmp_path: Path) -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (1500, 2000, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "big.jpg", quality=95)
    store = MediaStore(tmp_path / MEDIA)
    file = store.path(store.put((tmp_path / "big.jpg").read_bytes()))
    assert picture(file)[1:] == (640, 480)
    assert len(picture(file).url) < 500_000
    assert picture(file, SMALL)[1:] == (64, 48)
    assert len(thumbnail(file) or "") < 15_000
    assert thumbnail(file.with_name("0" * 64)) is None
