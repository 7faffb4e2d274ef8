"""`headrace rank ...`: rankers of documents that read a search session.

In: parsed arguments. Out: an exit code; a run folder with a trained ranker, or figures of one on
lists of candidates, as a table or JSON, and a TREC run file if asked.
"""

import argparse
import json
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
    """MAP, MRR and NDCG of a ranker."""
    require("train")
    import torch

    from learner.ranking.metrics import rank_figures
    from learner.ranking.model import SessionRanker
    from rewards.models.card import check_kind, check_tokenizer, read_card

    folder = Path(arguments.model).expanduser()
    card = read_card(folder)
    check_kind(folder, card, "ranker")
    assert isinstance(card.objective, RankerConfig)
    ranker = SessionRanker.load(folder, torch.device("cpu"), longest=card.max_tokens)
    check_tokenizer(folder, card, ranker.tokenizer, "its own folder")
    left_out: Counter[str] = Counter()
    lists = _lists(arguments.lists, left_out)
    scores = ranker.scores_of(lists, reads_history=card.objective.reads_history)
    figures = rank_figures(scores, [ranked.labels for ranked in lists])
    found = {**figures, **{name: number for name, number in left_out.items() if number}}
    if arguments.trec is not None:
        arguments.trec.write_text("".join(_trec(lists, scores, folder.name)), encoding="utf-8")
    if arguments.json:
        print(json.dumps({"model": str(folder), **found}))
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


def _trec(
    lists: Sequence[RankedList], scores: Sequence[Sequence[float]], name: str
) -> Iterator[str]:
    """Lines `query Q0 document rank score name`, best first."""
    for number, (ranked, given) in enumerate(zip(lists, scores, strict=True), start=1):
        order = sorted(range(len(given)), key=lambda place: -given[place])
        for rank, place in enumerate(order, start=1):
            query = (ranked.where or f"list {number}").replace(" ", "_")
            yield f"{query} Q0 candidate_{place + 1} {rank} {given[place]:.6f} {name}\n"
