"""The kind `ranker`: a ranker of documents scores a policy that reads search sessions.

In: the policy's answer, and a row with `history`, `query`, `candidates` and `labels` (or `clicked`;
see `headrace.data.sessions`). Out: how well the click is found when the answer stands in the place
of the query, or when it orders the candidates (`3 1 2`). The model (COCA, arXiv 2108.10510) is one
that `headrace rank train` made, or the version of it that an item names, where the run trains it
along; each verdict says which it was. A row without a click is `invalid`, never 0.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.data.sessions import RankedList, clean_list, ranked_list_of
from headrace.errors import UserError
from headrace.protocol.messages.control import ModelVersion, ScoreItem
from rewards.functions.arguments import InvalidRewardError
from rewards.functions.results import Verdict
from rewards.kinds import model_folder
from rewards.verifier import Verifier

UNITS = ("trajectory", "group")
COLUMNS = ("history", "query", "candidates")
LOADED = 2
"""Versions that a child keeps."""
Score = Callable[[RankedList, ModelVersion | None], tuple[list[float], str | None]]


class Options(StrictModel):
    """The ranker, the form of the answer, and the reward."""

    model: str | None = None
    """Folder of the ranker, relative to recipe or working directory; required."""

    answer: Literal["query", "order"] = "query"
    """query: the answer stands in the place of the last query. order: numbers of candidates, from 1
    on, the best first; what is not named comes behind, in its old order."""

    pays: Literal["reciprocal_rank", "ndcg", "score"] = "reciprocal_rank"
    """Of the click: 1 / its place, or NDCG. score: what the ranker itself says from 0 to 1, of the
    click behind the answer, or of the order's NDCG where its scores are the gains; such a reward
    can be gamed, so the reciprocal rank is always a part."""

    reads_history: bool = True
    """False: the ranker reads the answer alone, as an engine that knows no sessions."""

    threads: int = Field(default=1, ge=1)
    """Torch threads of a scoring child."""


def build(options: Options) -> Verifier:
    """The verifier, with its model loaded; UserError where that is no ranker."""
    folder = Path(model_folder(options.model, "ranker", "session ranker")).expanduser()
    score = _scoring(options, folder)

    def judge(item: ScoreItem) -> Verdict:
        if item.siblings:
            each = (_judged(options, score, one, item.model) for one in item.siblings)
            return Verdict(siblings=tuple(each))
        return _judged(options, score, item, item.model)

    return Verifier(judge, needs=COLUMNS)


def _scoring(options: Options, start: Path) -> Score:
    # Torch takes seconds to load, and most kinds do without.
    import torch

    from learner.ranking.model import SessionRanker, digest_of
    from rewards.models.card import check_kind, check_tokenizer, read_card

    torch.set_num_threads(options.threads)
    card = read_card(start)
    check_kind(start, card, "ranker")
    first = ModelVersion(version=0, path=str(start), digest=digest_of(start))

    @lru_cache(maxsize=LOADED)
    def load(version: ModelVersion) -> SessionRanker:
        found = SessionRanker.load(Path(version.path), torch.device("cpu"), longest=card.max_tokens)
        check_tokenizer(start, card, found.tokenizer, version.path)
        if digest_of(Path(version.path)) != version.digest:
            raise UserError(f"{version.path} is not version {version.version} of the ranker")
        return found

    load(first)

    def score(ranked: RankedList, version: ModelVersion | None) -> tuple[list[float], str | None]:
        version = version or first
        scores = load(version).scores_of([ranked], reads_history=options.reads_history)
        return scores[0], version.named

    return score


def _judged(
    options: Options, score: Score, item: ScoreItem, version: ModelVersion | None
) -> Verdict:
    from learner.ranking.metrics import ndcg, order_of, reciprocal_rank

    try:
        row = ranked_list_of(json.loads(item.info), "the row")
        ranked, lacks = clean_list(row)
    except UserError as error:
        raise InvalidRewardError(str(error)) from error
    if lacks:
        raise InvalidRewardError(f"the row is {lacks.replace('_', ' ')}")
    if options.answer == "order":
        order = _order(item.text, row.candidates, ranked.candidates)
        scores, model = score(ranked, version) if options.pays == "score" else ([], None)
    else:
        scores, model = score(replace(ranked, query=item.text), version)
        order = order_of(scores, ranked.candidates)
    rank = reciprocal_rank(order, ranked.labels)
    parts = {"reciprocal_rank": rank, "ndcg": ndcg(order, ranked.labels)}
    if options.pays == "score":
        gains = [(1.0 + math.tanh(score / 2)) / 2 for score in scores]
        clicked = [gain for gain, label in zip(gains, ranked.labels, strict=True) if label > 0]
        parts["score"] = ndcg(order, gains) if options.answer == "order" else max(clicked)
    return Verdict(parts[options.pays], rank == 1.0, parts, model=model)


def _order(text: str, shown: Sequence[str], kept: Sequence[str]) -> list[int]:
    """Places of kept candidates by an answer's numbers of those in the row, which may have empty
    and repeated ones besides; what it does not name comes behind."""
    named = [int(number) - 1 for number in re.findall(r"\d{1,6}", text)]
    places = {candidate: place for place, candidate in enumerate(kept)}
    said = (places.get(shown[number]) for number in named if 0 <= number < len(shown))
    first = [place for place in dict.fromkeys(said) if place is not None]
    return first + [place for place in range(len(kept)) if place not in first]
