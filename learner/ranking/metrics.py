"""Figures of ranked lists, by ir-measures.

In: scores and labels of lists. Out: MAP, MRR and NDCG at 1, 3, 5 and 10, means over lists.
Promises: equal scores are ordered by a hash of list and place, so that ties do not depend on the
order of candidates; lists without a relevant candidate are left out and counted.
"""

import hashlib
import math
from collections.abc import Sequence

from ir_measures import AP, RR, Qrel, ScoredDoc, calc_aggregate, nDCG

MEASURES = {"map": AP, "mrr": RR} | {f"ndcg_{k}": nDCG @ k for k in (1, 3, 5, 10)}


def rank_figures(
    scores: Sequence[Sequence[float]], labels: Sequence[Sequence[int]]
) -> dict[str, float | int | None]:
    """Return figures of lists' scores and labels; None: no list has a relevant one."""
    run: list[ScoredDoc] = []
    relevant: list[Qrel] = []
    judged = [number for number, each in enumerate(labels) if any(label > 0 for label in each)]
    for number in judged:
        query = str(number)
        for place, (score, label) in enumerate(zip(scores[number], labels[number], strict=True)):
            name = _hashed(f"{number}/{place}")
            run.append(ScoredDoc(query, name, float(score)))
            relevant.append(Qrel(query, name, int(label)))
    found = calc_aggregate(list(MEASURES.values()), relevant, run) if judged else {}
    means = {name: found.get(measure) for name, measure in MEASURES.items()}
    return {"lists": len(judged), "without_relevant": len(labels) - len(judged), **means}


def order_of(scores: Sequence[float], candidates: Sequence[str]) -> list[int]:
    """Return places of candidates, best first; equal scores by the candidates' hashes."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], _hashed(candidates[i])))


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def reciprocal_rank(order: Sequence[int], labels: Sequence[float]) -> float:
    """Return 1 / the rank of an order's first relevant candidate; 0 where none is."""
    ranks = (rank for rank, place in enumerate(order, start=1) if labels[place] > 0)
    return 1.0 / next(ranks, math.inf)


def ndcg(order: Sequence[int], labels: Sequence[float]) -> float:
    """Return an order's NDCG, gains being labels as in trec_eval; 0: none is > 0."""
    best = _gained(sorted(labels, reverse=True))
    return _gained([labels[place] for place in order]) / best if best > 0 else 0.0


def _gained(labels: Sequence[float]) -> float:
    return math.fsum(label / math.log2(rank + 1) for rank, label in enumerate(labels, start=1))
