"""The kind `pairwise`: how likely an answer beats its prompt's anchor."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.config.sections.reward import RewardConfig, SourceConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import ScoreItem
from rewards.build import build_verifier
from rewards.functions.arguments import InvalidRewardError
from rewards.kinds.pairwise import Options, build
from rewards.labeling.offline_scoring import open_scorer
from rewards.models.scorer import PairScorer
from tests.pair_model import write_pair_model

POLICY = Path(__file__).parents[3] / "recipes" / "models" / "tracking-cold"
PROMPT, GOOD, BAD = "3a14=", "a14+3=3;#3", "a14+3=1;#1"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair_model(POLICY, tmp_path_factory.mktemp("judge"))


@pytest.fixture(name="anchors")
def _anchors(tmp_path: Path) -> Path:
    path = tmp_path / "anchors.jsonl"
    path.write_text(json.dumps({"prompt": PROMPT, "anchor": GOOD, "else": 1}) + "\n\n")
    return path


def item(text: str, prompt: str = PROMPT, *, messages: Any = None, **columns: Any) -> ScoreItem:
    return ScoreItem(
        trajectory_id=0,
        prompt=prompt,
        text=text,
        answer="",
        finished=True,
        num_tokens=len(text),
        info=json.dumps(columns),
        messages="" if messages is None else json.dumps(messages),
    )


def test_the_reward_is_the_mean_over_both_orders(folder: Path, anchors: Path) -> None:
    verdict = build(Options(model=str(folder), anchors=str(anchors)))(item(BAD))
    scorer = PairScorer(folder)
    yes_front, yes_back = scorer.yes(PROMPT, BAD, GOOD), scorer.yes(PROMPT, GOOD, BAD)
    assert verdict.reward == pytest.approx((yes_front + 1 - yes_back) / 2, abs=1e-6)
    assert verdict.correct == (verdict.reward > 0.5)
    assert verdict.parts == {
        "correct": float(verdict.correct),
        "front": pytest.approx(yes_front, abs=1e-6),
        "back": pytest.approx(1 - yes_back, abs=1e-6),
    }


def test_the_anchor_itself_is_worth_half_and_beats_nobody(folder: Path, anchors: Path) -> None:
    verdict = build(Options(model=str(folder), anchors=str(anchors)))(item(GOOD))
    assert verdict.reward == pytest.approx(0.5)
    assert not verdict.correct
    nothing = build(Options(model=str(folder), anchors=str(anchors)))(item(" \n"))
    assert (nothing.reward, nothing.parts) == (0.0, {"correct": 0.0})


def test_an_anchor_of_a_column_and_a_prompt_that_is_a_chat(folder: Path, anchors: Path) -> None:
    """The judge reads the message, not what the policy's template makes of it."""
    of_file = build(Options(model=str(folder), anchors=str(anchors)))
    of_column = build(Options(model=str(folder), column="gold"))
    assert of_column.needs == ("gold",)
    assert of_column(item(BAD, gold=GOOD)) == of_file(item(BAD))
    chat = [{"role": "user", "content": PROMPT}]
    assert of_column(item(BAD, "<u>3a14=", messages=chat, gold=GOOD)) == of_file(item(BAD))
    row = {"prompt": chat, "policy_prompt": "<u>3a14=", "anchor": GOOD}
    anchors.write_text(json.dumps(row))
    again = build(Options(model=str(folder), anchors=str(anchors)))
    assert again(item(BAD, "<u>3a14=")) == of_file(item(BAD))


def test_what_has_no_anchor_or_is_too_long_is_invalid(folder: Path, anchors: Path) -> None:
    of_file = build(Options(model=str(folder), anchors=str(anchors)))
    of_column = build(Options(model=str(folder), column="gold"))
    for verifier, asked, line in (
        (of_file, item(BAD, "3b14="), "has no anchor for the prompt '3b14='"),
        (of_column, item(BAD, gold=None), "its column 'gold' is None"),
        (of_column, item(BAD, gold=""), "its column 'gold' is ''"),
        (of_file, item("1" * 5000), "tokens are too many"),
    ):
        with pytest.raises(InvalidRewardError, match=line):
            verifier(asked)


def test_a_scoring_child_says_invalid_and_pays_what_the_source_says(
    folder: Path, anchors: Path
) -> None:
    config = RewardConfig(
        kind="pairwise",
        options={"model": str(folder), "anchors": str(anchors)},
        wrong_reward=-1.0,
        timeout_s=60.0,
    )

    async def scores() -> list[Any]:
        async with open_scorer(config) as scorer:
            return [await scorer.score(item(GOOD)), await scorer.score(item(GOOD, "3b14="))]

    anchored, without = asyncio.run(scores())
    assert (anchored.status, without.status) == ("ok", "invalid")
    assert anchored.reward == pytest.approx(0.0, abs=1e-6)
    assert "has no anchor" in without.error


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, "needs a pairwise reward model"),
        ({"model": "{folder}"}, "needs anchors"),
        ({"model": "{folder}", "anchors": "a", "column": "b"}, "needs anchors"),
        ({"model": "{folder}", "anchors": "nowhere.jsonl"}, "no anchors at nowhere.jsonl"),
        ({"model": "nowhere", "column": "b"}, "no reward model at nowhere"),
        ({"model": "{policy}", "column": "b"}, "is not a reward model"),
    ],
)
def test_mistakes(folder: Path, options: dict[str, str], line: str) -> None:
    told = {key: text.format(folder=folder, policy=POLICY) for key, text in options.items()}
    with pytest.raises(UserError, match=line):
        build_verifier(SourceConfig(kind="pairwise", options=told))


def test_another_tokenizer_and_words_of_several_tokens_are_refused(tmp_path: Path) -> None:
    words = write_pair_model(POLICY, tmp_path / "words", yes="SS")
    with pytest.raises(UserError, match="'SS' is 2 tokens behind the template"):
        build(Options(model=str(words), column="gold"))
    folder = write_pair_model(POLICY, tmp_path / "other")
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="is not the one that the reward model"):
        build(Options(model=str(folder), column="gold"))


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ("nonsense", "row 2: not JSON"),
        ('"\udcfc"', "row 2: not JSON: .* can't decode byte 0xfc"),
        ('{"prompt": "q"}', "row 2: an anchor's row is an object"),
        ('{"prompt": [], "anchor": "a"}', "row 2: its prompt is a chat"),
        ('{"prompt": "3a14=", "anchor": "other"}', "row 2: a second anchor"),
    ],
)
def test_files_that_are_no_anchors(anchors: Path, row: str, line: str) -> None:
    text = json.dumps({"prompt": PROMPT, "anchor": GOOD}) + "\n" + row + "\n"
    anchors.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=line):
        build(Options(model="nowhere", anchors=str(anchors)))
