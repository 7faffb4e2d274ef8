"""`headrace rank ...`: rankers of documents that read a search session.

In: parsed arguments. Out: an exit code; a run folder with a trained ranker, or figures of one on
lists of candidates, as a table or JSON, and a TREC run file if asked.
"""

import argparse
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.config.sections.reward_model import RankerConfig
from headrace.data.sessions import RankedList
from headrace.errors import UserError
from headrace.host.install import require
from headrace_cli.commands.reward import train as reward_training

DEFAULT_LISTS = 400


def train(arguments: argparse.Namespace) -> int:
    """Both stages of a recipe, or what is left of a run."""
    return reward_training.train(arguments, expects=RankerConfig)


def evaluate(arguments: argparse.Namespace) -> int:
    """MAP, MRR and NDCG of a ranker, or of a run file."""
    require("train")
    from learner.ranking.metrics import rank_figures

    if arguments.trec is not None and not (folder := arguments.trec.resolve().parent).is_dir():
        raise UserError(f"--trec {arguments.trec}: there is no folder {folder}; make it first")
    source = Path(os.path.expanduser(arguments.model))
    left_out: Counter[str] = Counter()
    lists = _lists(arguments.lists, left_out)
    scores = _read_run(source, lists) if source.is_file() else _scores(source, lists)
    figures = rank_figures(scores, [ranked.labels for ranked in lists])
    found = {**figures, **{name: number for name, number in left_out.items() if number}}
    if arguments.trec is not None:
        tag = "_".join(source.resolve().name.split())
        arguments.trec.write_text("".join(_trec(lists, scores, tag)), encoding="utf-8")
    if arguments.json:
        print(json.dumps({"model": str(source), **found}))
        return 0
    for name, value in found.items():
        shown = f"{value:.4f}" if isinstance(value, float) else str(value)
        print(f"{name.replace('_', ' '):<22} {shown}")
    return 0


def _lists(path: str | None, left_out: Counter[str]) -> list[RankedList]:
    if path is None:
        from tasks.procedural.search_world import search_data

        return search_data(sessions=0, lists=0, held_out=DEFAULT_LISTS, seed=0).held_out
    from tasks.datasets.session_files import read_lists

    lists = list(read_lists(path, left_out))
    if not lists:
        raise UserError(f"{path} has no list with a relevant candidate")
    return lists


def _scores(folder: Path, lists: Sequence[RankedList]) -> list[list[float]]:
    """Return a ranker's score of each candidate."""
    import torch

    from learner.ranking.model import SessionRanker
    from rewards.models.card import check_kind, check_tokenizer, read_card

    card = read_card(folder)
    check_kind(folder, card, "ranker")
    assert isinstance(card.objective, RankerConfig)
    ranker = SessionRanker.load(folder, torch.device("cpu"), longest=card.max_tokens)
    check_tokenizer(folder, card, ranker.tokenizer, "its own folder")
    return ranker.scores_of(lists, reads_history=card.objective.reads_history)


def _queries(lists: Sequence[RankedList]) -> list[str]:
    """The name of each list in a run file."""
    named = (ranked.where or f"list {number}" for number, ranked in enumerate(lists, start=1))
    return [name.replace(" ", "_") for name in named]


def _trec(
    lists: Sequence[RankedList], scores: Sequence[Sequence[float]], name: str
) -> Iterator[str]:
    """Lines `query Q0 document rank score name`, best first."""
    from learner.ranking.metrics import order_of

    for query, ranked, given in zip(_queries(lists), lists, scores, strict=True):
        for rank, place in enumerate(order_of(given, ranked.candidates), start=1):
            yield f"{query} Q0 candidate_{place + 1} {rank} {given[place]:.6f} {name}\n"


def _read_run(path: Path, lists: Sequence[RankedList]) -> list[list[float]]:
    """Scores of a TREC run file, whose documents are `candidate_N`; what it leaves out comes last.

    UserError: a line of another shape, a score that is no number, a list or candidate that `lists`
    does not have, or one that comes twice.
    """
    places = {query: place for place, query in enumerate(_queries(lists))}
    scores = [[-math.inf] * len(ranked.candidates) for ranked in lists]
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        try:
            query, _, document, _, text, _ = line.split()
            score = float(text)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise UserError(f"{path} line {number} is not `query Q0 document rank score name`")
        given = scores[places[query]] if query in places else []
        candidates = {f"candidate_{place + 1}": place for place in range(len(given))}
        if document not in candidates:
            of = f"{query}, a list of {len(given)}" if given else f"{query}, which is no list here"
            raise UserError(f"{path} line {number} names {document} of {of}")
        if given[candidates[document]] > -math.inf:
            raise UserError(f"{path} line {number} names {document} of {query} again")
        given[candidates[document]] = score
    return scores
