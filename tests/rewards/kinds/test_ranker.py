"""The kind `ranker`: a policy is paid by how well a ranker finds the click by its answer."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace as replaced
from safetensors.torch import load_file, save_file

from headrace.config.sections.reward import SourceConfig
from headrace.data.sessions import ranked_list_of
from headrace.errors import UserError
from headrace.protocol.messages.control import ModelVersion, ScoreItem
from learner.ranking.metrics import rank_figures
from learner.ranking.model import SessionRanker, digest_of
from rewards.build import build_verifier
from rewards.functions.arguments import InvalidRewardError
from rewards.kinds.ranker import Options, build
from rewards.worker.pipe import Outcome
from tasks.procedural.search_world import REWRITING
from tests.rewards.items import item, row

MODELS = Path(__file__).parents[3] / "recipes" / "models"
RANKER = MODELS / "sessions-ranker"
PROMPT = "Ka Kc>Kb Ka Kc Kd;Ka>Kc Kb Ka Kd Kh;Xp="
COLUMNS: dict[str, Any] = REWRITING.columns(PROMPT)


def asked(text: str, **changes: Any) -> ScoreItem:
    return row(text, **{**COLUMNS, **changes})


def reciprocal_rank(text: str, folder: Path = RANKER, *, reads_history: bool = True) -> float:
    """By the model and ir-measures, with an answer in the place of the query."""
    ranker = SessionRanker.load(folder, torch.device("cpu"), longest=128)
    ranked = replace(ranked_list_of(COLUMNS, "here"), query=text)
    scores = ranker.scores_of([ranked], reads_history=reads_history)
    found = rank_figures(scores, [ranked.labels])["mrr"]
    assert isinstance(found, float)
    return found


@pytest.mark.parametrize("reads_history", [True, False])
def test_an_answer_is_worth_the_place_of_the_click(reads_history: bool) -> None:
    verifier = build(Options(model=str(RANKER), reads_history=reads_history))
    for text in ("Xp", "Ka Kb Kc Kd", "Na Na"):
        verdict = verifier(asked(text))
        assert verdict.reward == pytest.approx(reciprocal_rank(text, reads_history=reads_history))
        assert verdict.correct == (verdict.reward == 1.0)
        assert verdict.model == f"0-{digest_of(RANKER)}"
        assert Outcome.of(verdict, 0.0).model == verdict.model


def test_an_order_of_candidates_is_worth_its_ndcg() -> None:
    right = COLUMNS["labels"].index(1) + 1
    others = [n for n in range(1, 11) if n != right]
    verifier = build(Options(model=str(RANKER), answer="order", pays="ndcg"))
    for place, worth in ((0, 1.0), (1, 1 / 1.584962500721156), (2, 0.5)):
        order = [*others[:place], right, *others[place:]]
        verdict = verifier(asked(" ".join(map(str, order))))
        assert verdict.reward == pytest.approx(worth)
    best = verifier(asked(f"{right}, and {right} again, 99 and 0"))
    assert (best.reward, best.correct, best.model) == (1.0, True, None), "the rest comes behind"
    by_ranker = build(Options(model=str(RANKER), answer="order", pays="score"))
    told = by_ranker(asked(f"{right}"))
    assert 0 < told.reward <= 1
    assert told.parts["reciprocal_rank"] == 1.0, "the click, whatever is paid"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": [0] * 10}, "without relevant"),
        ({"candidates": ["Ka"] * 10, "labels": [0] * 10}, "without relevant"),
        ({"query": ""}, "without query"),
        ({"labels": [1]}, "10 candidates and other labels"),
        ({"candidates": None}, "no query and candidates"),
        ({"history": 3}, "no list of query and clicked"),
    ],
)
def test_a_row_that_says_nothing_is_invalid_and_never_zero(
    changes: dict[str, Any], words: str
) -> None:
    verifier = build(Options(model=str(RANKER)))
    with pytest.raises(InvalidRewardError, match=words):
        verifier(asked("Ka", **changes))
    assert verifier(asked("", candidates=[*COLUMNS["candidates"], "", COLUMNS["candidates"][0]],
                          labels=[*COLUMNS["labels"], 0, 0])).reward > 0  # fmt: skip


def test_an_item_names_the_version_that_scores_it(tmp_path: Path) -> None:
    other = tmp_path / "v7"
    shutil.copytree(RANKER, other)
    weights = load_file(other / "model.safetensors")
    weights["classifier.weight"] = -weights["classifier.weight"]
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    verifier = build(Options(model=str(RANKER)))
    version = ModelVersion(version=7, path=str(other), digest=digest_of(other))
    text = "Ka Kb"
    verdict = verifier(replaced(asked(text), model=version))
    assert verdict.model == version.named
    assert verdict.reward == pytest.approx(reciprocal_rank(text, other))
    assert verdict.reward != reciprocal_rank(text), "the other one turned the order round"
    for wrong in (replaced(version, digest="0" * 16), replaced(version, path=str(tmp_path))):
        with pytest.raises(UserError):
            verifier(replaced(asked(text), model=wrong))


def test_a_group_is_scored_at_once_by_one_version() -> None:
    source = SourceConfig(kind="ranker", unit="group", options={"model": str(RANKER)})
    verifier = build_verifier(source)
    siblings = [asked("Ka Kb"), asked("Xp")]
    whole = replaced(item(""), unit="group", siblings=siblings)
    verdict = verifier(whole)
    texts = [each.text for each in siblings]
    given = [each and each.reward for each in verdict.siblings]
    assert given == pytest.approx([reciprocal_rank(text) for text in texts])
    outcome = Outcome.of(verdict, 0.0)
    assert {each.model for each in outcome.siblings} == {f"0-{digest_of(RANKER)}"}


def test_a_folder_that_is_no_ranker_is_one_line(tmp_path: Path) -> None:
    for folder, words in (
        (MODELS / "straight-line-prm", "was trained with objective.kind = 'lines'"),
        (MODELS / "sessions-cold", "is not a reward model"),
        (tmp_path / "none", "no reward model at"),
    ):
        with pytest.raises(UserError, match=words):
            build(Options(model=str(folder)))
    with pytest.raises(UserError, match=r"name its folder in options\.model"):
        build(Options())
    strange = tmp_path / "strange"
    shutil.copytree(RANKER, strange)
    told = json.loads((strange / "reward_model.json").read_text())
    (strange / "reward_model.json").write_text(json.dumps(told | {"vocabulary": "0" * 32}))
    with pytest.raises(UserError, match="is not the one that the reward model"):
        build(Options(model=str(strange)))
