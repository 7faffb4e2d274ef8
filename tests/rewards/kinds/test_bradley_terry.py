"""The kind `bradley_terry`: the score of a whole answer, with the image where the model sees it."""

import asyncio
import json
import math
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.config.sections.reward import RewardConfig, SourceConfig
from headrace.data.media import MediaStore
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.build import build_verifier
from rewards.functions.arguments import InvalidRewardError
from rewards.kinds.bradley_terry import Options, build
from rewards.labeling.offline_scoring import open_scorer
from rewards.models import scorer as scorers
from rewards.models.scorer import ScoreScorer
from tasks.procedural.shapes import CAPTION, DESCRIBE, caption, draw, draw_scene
from tests.learner.models.pictures import lacks
from tests.rewards.items import item
from tests.rewards.models.small import run, small

MODELS = Path(__file__).parents[3] / "recipes" / "models"
CAPTIONS = MODELS / "shapes-captions"
needs_images = pytest.mark.skipif(bool(lacks()), reason=lacks())
SCENE = {"blue": (0, 2, 1, 4), "red": (2, 0, 3, 2)}
RIGHT = "bsw rne"


def asked(text: str, digest: str, folder: Path = Path()) -> ScoreItem:
    """A caption of the image in that folder."""
    parts = [{"type": "image", "image": digest}, {"type": "text", "text": DESCRIBE}]
    messages = json.dumps([{"role": "user", "content": parts}])
    return replace(item(text), messages=messages, media=str(folder))


@pytest.fixture(name="digest")
def _digest(tmp_path: Path) -> str:
    return MediaStore(tmp_path).put(draw(SCENE))


@needs_images
def test_what_is_seen_mostly_scores_more_than_what_is_not(digest: str, tmp_path: Path) -> None:
    verifier = build(Options(model=str(CAPTIONS), center=2.0, thought="think"))
    rng, store, better = Random(1), MediaStore(tmp_path), []
    for _ in range(40):
        scene = draw_scene(rng, 4)
        seen, other = store.put(draw(scene)), caption(draw_scene(rng, 4))
        right, wrong = (
            verifier(asked(caption(scene), seen, tmp_path)),
            verifier(asked(other, seen, tmp_path)),
        )
        assert 0 <= min(right.reward, wrong.reward) <= max(right.reward, wrong.reward) <= 1
        better.append(right.reward > wrong.reward)
    assert sum(better) >= 30
    verdict = verifier(asked(RIGHT, digest, tmp_path))
    assert verdict.reward == pytest.approx(1 / (1 + math.exp(2 - verdict.parts["logit"])))
    assert verifier(asked(f"<think>no</think> {RIGHT}", digest, tmp_path)) == verdict
    scorer, messages = (
        ScoreScorer(CAPTIONS, read_image=store.read),
        json.loads(asked("", digest, tmp_path).messages),
    )
    assert scorer.score(messages, RIGHT) == pytest.approx(verdict.parts["logit"], abs=1e-5)


@pytest.mark.parametrize(("mode", "is_chat"), [("always", True), ("auto", True), ("never", False)])
def test_a_prompt_of_the_policys_template_is_framed_once(
    mode: str, is_chat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the model, as in the pairs of a run, or by the policy where the model frames nothing."""
    seen: list[Any] = []

    def score(prompt: Any, response: str, *, ended: bool) -> float:
        seen.append(prompt)
        return 1.0

    scorer = SimpleNamespace(card=SimpleNamespace(chat_template=mode), score=score)
    monkeypatch.setattr(scorers, "ScoreScorer", lambda folder, read_image: scorer)
    framed = replace(item("7"), prompt="<u>3+4<a>", messages='"3+4"')
    verdict = build(Options(model=str(CAPTIONS)))(framed)
    shown = [{"role": "user", "content": "3+4"}] if is_chat else framed.prompt
    assert (verdict.parts, seen) == ({"logit": 1.0}, [shown])


@needs_images
def test_a_format_comes_first_and_the_threshold_says_what_is_right(
    digest: str, tmp_path: Path
) -> None:
    logit = build(Options(model=str(CAPTIONS)))(asked(RIGHT, digest, tmp_path)).parts["logit"]
    for center, right in ((logit - 0.1, True), (logit + 0.1, False)):
        source = SourceConfig(
            kind="bradley_terry",
            options={"model": str(CAPTIONS), "center": center},
            format=CAPTION.pattern,
        )
        verifier = build_verifier(source)
        assert verifier(asked(RIGHT, digest, tmp_path)).correct == right
        barred = verifier(asked("two of them", "0" * 64, tmp_path))
        assert (barred.reward, barred.parts) == (0.0, {"correct": 0.0, "format": 0.0})


@needs_images
def test_a_row_without_its_image_is_recorded_as_invalid(digest: str, tmp_path: Path) -> None:
    config = RewardConfig(kind="bradley_terry", options={"model": str(CAPTIONS)}, timeout_s=60.0)

    async def scores() -> list[Any]:
        async with open_scorer(config) as scorer:
            gone = asked(RIGHT, "0" * 64, tmp_path)
            return [await scorer.score(one) for one in (gone, asked(RIGHT, digest, tmp_path))]

    gone, there = asyncio.run(scores())
    assert (gone.status, there.status) == ("invalid", "ok")
    assert gone.error.endswith(f"{'0' * 64} cannot be read: No such file or directory")
    (tmp_path / digest).write_bytes(b"other")
    with pytest.raises(InvalidRewardError, match="is damaged"):
        build(Options(model=str(CAPTIONS)))(asked(RIGHT, digest, tmp_path))


def test_a_model_of_text_scores_texts_and_refuses_images(tmp_path: Path) -> None:
    _, outcome = run(small("bradley-terry", tmp_path, steps=2))
    assert outcome.model is not None
    verifier = build(Options(model=str(outcome.model)))
    text = replace(item("a3+0=3;b5+3=8;#8"), prompt="a3b5=")
    scorer = ScoreScorer(outcome.model)
    assert verifier(text).parts["logit"] == pytest.approx(scorer.score("a3b5=", text.text))
    turn = verifier(replace(text, text="#8<|im_end|>")).parts["logit"]
    assert turn == pytest.approx(scorer.score("a3b5=", "#8< |im_end|>"))
    hidden = build(Options(model=str(outcome.model), thought="think", answer_marker="#"))
    for nothing in ("<think>a3+0=3;#8", "a3+0=3;b5+3=8;", " "):
        verdict = hidden(replace(text, text=nothing))
        assert (verdict.reward, verdict.parts) == (0.0, {})
    with pytest.raises(InvalidRewardError, match="parts of type 'image', and text alone is read"):
        verifier(asked(RIGHT, "0" * 64, tmp_path))


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (None, "needs a reward model of whole answers"),
        ("nowhere", "no reward model at nowhere"),
        (str(MODELS / "straight-line-prm"), "was trained with objective.kind = 'lines'"),
    ],
)
def test_mistakes(model: str | None, line: str) -> None:
    with pytest.raises(UserError, match=line):
        build(Options(model=model))
