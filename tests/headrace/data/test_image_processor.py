"""What images become in a prompt: the very tokens that each family's own processor makes of the
whole prompt, and back to one placeholder an image."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.data.image_processor import (
    ImageProcessor,
    collapse_placeholders,
    placeholder_ids,
    sees_images,
)
from headrace.data.media import open_rgb
from headrace.errors import UserError
from headrace.protocol.token_spans import MediaRun
from tests.learner.models.pictures import folder_of, lacks, store

pytestmark = pytest.mark.skipif(bool(lacks()), reason=lacks())
FAMILIES = ("qwen3_vl", "qwen2_5_vl", "idefics3")
SHOWN = [[], [0], [1, 2], [2, 0, 2], [1] * 5]
"""The pictures of a prompt."""


class Model(NamedTuple):
    """A folder, and what its processors make of it."""

    folder: Path
    ours: ImageProcessor
    theirs: Any
    banned: list[int]


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    from transformers import AutoConfig, AutoProcessor

    folder = folder_of(request.param, tmp_path_factory.mktemp("model"))
    banned = placeholder_ids(AutoConfig.from_pretrained(folder))
    return Model(
        folder, ImageProcessor(str(folder)), AutoProcessor.from_pretrained(folder), banned
    )  # fmt: skip


def read(seen: list[str] | None = None) -> Callable[[str], Any]:
    """Gives the picture of a digest, and notes that it was asked for."""
    files = store()

    def pixels(digest: str) -> Any:
        if seen is not None:
            seen.append(digest)
        return open_rgb(files[digest])

    return pixels


def said(model: Model, shown: list[int], text: str = "how many?") -> str:
    """A chat with these pictures before, between and behind its text."""
    parts: list[dict[str, str]] = [{"type": "text", "text": text}]
    for number, _ in enumerate(shown):
        parts.insert(2 * number, {"type": "image"})
        parts.insert(2 * number + 1, {"type": "text", "text": f"{number}"})
    chat = [{"role": "user", "content": parts}]
    return str(
        model.theirs.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    )


def tokens(model: Model, text: str) -> list[int]:
    return [
        int(token) for token in model.theirs.tokenizer(text, add_special_tokens=False).input_ids
    ]


@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_a_prompt_is_what_the_whole_processor_makes_of_it(model: Model, shown: list[int]) -> None:
    """And back again: vLLM is sent one placeholder an image, and is held to all of them."""
    digests = [list(store())[i] for i in shown]
    text, pixels = said(model, shown), read()
    images = {"images": [[pixels(digest) for digest in digests]]} if shown else {}
    whole = model.theirs(text=[text], add_special_tokens=False, **images)["input_ids"][0]
    ids = tokens(model, text)
    expanded, media = model.ours.expand(ids, digests, pixels)
    assert expanded.tolist() == [int(token) for token in whole]
    assert collapse_placeholders(expanded.tolist(), media, model.banned) == ids
    assert [run.digest for run in media] == digests
    ends = [0, *(run.end for run in media)]
    assert all(end <= run.start < run.end for end, run in zip(ends, media, strict=False))
    inside = {at for run in media for at in range(run.start, run.end)}
    placeholders = {at for at, token in enumerate(expanded) if int(token) in model.banned}
    assert placeholders <= inside
    assert all(placeholders & set(range(run.start, run.end)) for run in media)


def test_an_image_is_processed_once_and_its_size_counts(model: Model) -> None:
    """56 x 56 pixels are four tokens, 28 x 28 one, but for Idefics3, which enlarges them."""
    seen = list[str]()
    digests = list(store())
    ids = tokens(model, said(model, [0, 1, 2]))
    first = model.ours.expand(ids, digests, read())
    again = model.ours.expand(ids, digests, read(seen))
    assert first[0].tolist() == again[0].tolist()
    assert first[1] == again[1]
    assert seen == []
    counts = [
        sum(int(token) in model.banned for token in first[0][run.start : run.end])
        for run in first[1]
    ]
    assert counts == (
        [4, 4, 4] if "idefics" in model.theirs.__class__.__name__.lower() else [4, 1, 4]
    )


@pytest.mark.parametrize(
    ("size", "grid"), [((448, 336), (1, 24, 32)), ((500, 333), (1, 24, 36)), ((56, 28), (1, 2, 4))]
)
@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
def test_tokens_of_an_image(
    family: str, size: tuple[int, int], grid: tuple[int, int, int], tmp_path: Path
) -> None:
    """Of 448 x 336 pixels 768 patches, so 192 tokens; 500 x 333 round to 504 x 336 (Seed1.5-VL)."""
    from PIL import Image
    from transformers import AutoProcessor

    folder = folder_of(family, tmp_path)
    settings = folder / "processor_config.json"
    changed = json.loads(settings.read_text())
    changed["image_processor"]["size"]["longest_edge"] = 1024 * 28 * 28
    settings.write_text(json.dumps(changed))
    theirs, picture = AutoProcessor.from_pretrained(folder), Image.new("RGB", size)
    token = theirs.tokenizer.convert_tokens_to_ids(theirs.image_token)
    ids, (run,) = ImageProcessor(str(folder)).expand([token], ["a" * 64], lambda _: picture)
    assert ids.tolist() == [token] * (math.prod(grid) // 4)
    assert run == MediaRun("a" * 64, 0, len(ids), grid)


@pytest.mark.parametrize(
    ("shown", "given", "text"),
    [
        ([0], 0, "how many?"),
        ([0], 2, "how many?"),
        ([], 1, "how many?"),
        ([0, 1], 1, "how many?"),
        ([0], 1, "how many IMAGE?"),
        ([], 0, "IMAGE"),
        ([], 0, "IMAGEIMAGE"),
    ],
)
def test_placeholders_that_are_not_the_images_are_one_line(
    model: Model, shown: list[int], given: int, text: str
) -> None:
    """Text of a prompt that looks like a placeholder among them: it would stand for nothing, or
    push an image into another's place."""
    text = text.replace("IMAGE", model.theirs.image_token)
    ids = tokens(model, said(model, shown, text))
    places = len(shown) + text.count(model.theirs.image_token)
    wanted = f"^{given} images, but {places} placeholders in the prompt$"
    with pytest.raises(UserError, match=wanted) as refused:
        model.ours.expand(ids, [list(store())[i] for i in range(given)], read())
    assert "\n" not in str(refused.value)


def test_an_image_that_cannot_be_read_leaves_nothing_behind(model: Model) -> None:
    """It is asked for again, and works then."""
    ours = ImageProcessor(str(model.folder))
    ids, (digest, *_) = tokens(model, said(model, [0])), store()

    def fails(digest: str) -> Any:
        raise UserError(f"no {digest}")

    with pytest.raises(UserError, match=f"^no {digest}$"):
        ours.expand(ids, [digest], fails)
    expanded, _ = ours.expand(ids, [digest], read())
    assert expanded.tolist() == model.ours.expand(ids, [digest], read())[0].tolist()


def test_what_stands_between_placeholders_of_one_image_collapses_with_them() -> None:
    """Some families write separators into an image, and around it."""
    media = [MediaRun("a" * 64, 1, 5), MediaRun("b" * 64, 5, 7)]
    assert collapse_placeholders([1, 90, 8, 9, 91, 8, 8, 2], media, [8, 9]) == [1, 8, 8, 2]
    assert collapse_placeholders([1, 2], [], [8, 9]) == [1, 2]


def test_a_folder_says_whether_it_sees(model: Model, tmp_path: Path) -> None:
    assert sees_images(model.folder)
    (tmp_path / "config.json").write_text('{"model_type": "gemma3", "vision_config": {}}')
    assert not sees_images(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert not sees_images(tmp_path)
    assert not sees_images(tmp_path / "nowhere")
    with pytest.raises(UserError) as refused:
        ImageProcessor(str(tmp_path))
    assert "\n" not in str(refused.value)
