"""Golden cases of COCA, and what must hold for any session."""

import math
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import RR, Qrel, ScoredDoc, calc_aggregate, nDCG

from headrace.data.sessions import NO_CLICK
from learner.ranking.encoding import END, MARKS, SessionEncoder, pad_rows
from learner.ranking.losses import contrastive, pointwise
from learner.ranking.metrics import ndcg, rank_figures, reciprocal_rank
from learner.ranking.sessions import (
    PART_GONE,
    TERM_GONE,
    delete_parts,
    mask_terms,
    reorder,
    two_views,
)
from tests.byte_tokenizer import train_tokenizer

EYE = torch.eye(2, dtype=torch.float64)


@pytest.mark.parametrize(("temperature", "loss"), [(0.1, 9.0796e-05), (1.0, 0.551445)])
def test_equal_orthogonal_views(temperature: float, loss: float) -> None:
    losses, right = contrastive(EYE, EYE, temperature)
    assert losses.mean().item() == pytest.approx(loss, rel=2e-3 if temperature < 1 else 1e-5)
    assert right.all()


def test_each_anchor_of_two_sessions() -> None:
    losses, right = contrastive(EYE, torch.tensor([[0.6, 0.8], [0.0, 1.0]]), 0.5)
    assert losses.tolist() == pytest.approx([0.471495, 0.590924, 1.382198, 0.590924], abs=1e-5)
    assert losses.mean().item() == pytest.approx(0.758885, abs=1e-5)
    assert right.float().mean().item() == 0.75


def test_a_collapsed_batch_is_chance() -> None:
    same = torch.ones(4, 3)
    assert contrastive(same, same, 0.1)[0].mean().item() == pytest.approx(math.log(7), abs=1e-5)


def test_pointwise() -> None:
    losses = pointwise(torch.tensor([2.0, -1.0]), torch.tensor([1, 0]))
    assert losses.tolist() == pytest.approx([0.126928, 0.313262], abs=1e-6)


def test_lists() -> None:
    scores = [[0.9, 0.8, 0.7, 0.6, 0.5]]
    found = rank_figures(scores, [[0, 1, 0, 0, 1]])
    assert [found[k] for k in ("map", "mrr", "ndcg_1", "ndcg_3", "ndcg_5")] == pytest.approx(
        [0.45, 0.5, 0.0, 0.386853, 0.624051], abs=1e-6
    )
    found = rank_figures([scores[0][:4]], [[2, 0, 3, 1]])
    assert [found[k] for k in ("map", "mrr", "ndcg_1", "ndcg_3", "ndcg_5")] == pytest.approx(
        [0.805556, 1.0, 0.666667, 0.735007, 0.825450], abs=1e-6
    )


def test_ties_cannot_be_won_and_lists_without_a_relevant_one_are_left_out() -> None:
    """A ranker that says the same of all comes to chance, wherever the relevant one stands."""
    chance = sum(1 / rank for rank in range(1, 11)) / 10
    for place in (0, 9):
        labels = [[int(i == place) for i in range(10)]] * 2000
        found = rank_figures([[1.0] * 10] * 2000, labels)
        assert found["map"] == pytest.approx(chance, abs=0.025)
    found = rank_figures([[1.0, 2.0]] * 3, [[0, 0], [0, 1], [0, 0]])
    assert (found["lists"], found["without_relevant"], found["map"]) == (1, 2, 1.0)
    assert rank_figures([[1.0]], [[0]])["map"] is None


def _slow_figures(scores: list[float], labels: list[int], order: list[int]) -> dict[str, float]:
    """MAP, MRR and NDCG@3 of one list as the textbook has them."""
    ranked = [labels[i] for i in sorted(range(len(scores)), key=lambda i: (-scores[i], order[i]))]
    hits = [rank for rank, label in enumerate(ranked, 1) if label > 0]
    gains = [sum(x / math.log2(r + 1) for r, x in enumerate(each[:3], 1))
             for each in (ranked, sorted(labels, reverse=True))]  # fmt: skip
    precision = [(place + 1) / rank for place, rank in enumerate(hits)]
    return {
        "map": sum(precision) / len(hits), "mrr": 1 / hits[0], "ndcg_3": gains[0] / gains[1],
    }  # fmt: skip


def test_figures_equal_the_textbook_on_lists_without_ties() -> None:
    draw = np.random.default_rng(0)
    for _ in range(100):
        size = int(draw.integers(2, 20))
        scores = draw.permutation(size).astype(float).tolist()
        labels = draw.integers(0, 3, size).tolist()
        labels[0] = labels[0] or 1
        found = rank_figures([scores], [labels])
        slow = _slow_figures(scores, labels, list(range(size)))
        assert {k: found[k] for k in slow} == pytest.approx(slow, abs=1e-6)


# -- variants ---------------------------------------------------------------------------------

WORDS = st.lists(st.sampled_from(["a", "bb", "ccc", "d"]), min_size=1, max_size=9).map(" ".join)
SESSIONS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6)


@given(pairs=SESSIONS, seed=st.integers(0, 99))
def test_masking_takes_half_of_the_terms_of_each_text(pairs: Any, seed: int) -> None:
    for before, after in zip(pairs, mask_terms(pairs, Random(seed), 0.5), strict=True):
        for text, masked in zip(before, after, strict=True):
            count, terms = len(text.split()), masked.split()
            assert count - sum(t != TERM_GONE for t in terms) == round(count * 0.5)
            assert all((a, b) != (TERM_GONE, TERM_GONE) for a, b in pairwise(terms))


@given(pairs=SESSIONS, seed=st.integers(0, 99))
def test_deletion_takes_half_of_the_parts_and_reordering_none(pairs: Any, seed: int) -> None:
    deleted = [part for pair in delete_parts(pairs, Random(seed), 0.5) for part in pair]
    assert deleted.count(PART_GONE) == len(pairs)
    assert sorted(reorder(pairs, Random(seed), 0.5)) == sorted(pairs)
    told = [(str(place), query) for place, (query, _) in enumerate(pairs)]
    moved = [a != b for a, b in zip(reorder(told, Random(seed), 0.5), told, strict=True)]
    assert sum(moved) == (2 if len(pairs) > 1 else 0)


@given(pairs=SESSIONS, seed=st.integers(0, 99))
def test_the_released_code_s_views_always_have_a_deletion(pairs: Any, seed: int) -> None:
    views = two_views(pairs, Random(seed), one_deletes=True)
    deleted = [sum(part == PART_GONE for pair in view for part in pair) for view in views]
    assert sorted(deleted) == [0, len(pairs)]
    assert two_views(pairs, Random(seed)) == two_views(pairs, Random(seed))


# -- tokens -----------------------------------------------------------------------------------


def encoder(longest: int) -> SessionEncoder:
    tokenizer = train_tokenizer(iter(["a bb ccc d"]), vocab_size=300, max_length=64)
    tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"})
    return SessionEncoder(tokenizer, longest)


def shown(made: SessionEncoder, ids: list[int]) -> str:
    return str(made._tokenizer.decode(ids))


def test_a_session_as_tokens() -> None:
    made = encoder(64)
    row = made.session([("a", "bb ccc"), ("d", NO_CLICK)])
    assert shown(made, row.ids) == "[CLS]a[eos]bb ccc[eos]d[eos][empty_d][eos][SEP]"
    row = made.candidate([("a", "bb")], "ccc", "d")
    assert shown(made, row.ids) == "[CLS]a[eos]bb[eos]ccc[eos][SEP]d[eos][SEP]"
    assert row.segments.count(1) == 3
    assert shown(made, made.session([("a [eos]", "[SEP]")]).ids).count("[SEP]") == 2
    forged = made.session([("a [eos]", "[SEP]")]).ids
    assert forged.count(made._last) == 1, "a text brings in no special token"
    assert forged.count(made._end) == 2


@given(pairs=SESSIONS, longest=st.integers(8, 40))
def test_rows_are_no_longer_than_their_limit_and_keep_what_is_newest(
    pairs: Any, longest: int
) -> None:
    made = encoder(longest)
    row = made.session(pairs)
    assert len(row.ids) <= longest
    assert (row.ids[0], row.ids[-1], row.ids.count(made._last)) == (made._first, made._last, 1)
    asked = made.candidate(pairs[:-1], pairs[-1][0], pairs[-1][1])
    assert len(asked.ids) == len(asked.segments) <= longest
    assert sorted(asked.segments) == asked.segments
    batch = pad_rows([row, asked], pad=0)
    assert batch["attention_mask"].sum(1).tolist() == [len(row.ids), len(asked.ids)]


def test_marks_are_tokens_of_their_own() -> None:
    made = encoder(64)
    ids = made.session([(f"a {TERM_GONE} d", PART_GONE)]).ids
    for mark in (TERM_GONE, PART_GONE):
        assert ids.count(made._marks[mark]) == 1
    assert len({END, *MARKS.values()}) == 4


def test_an_order_is_worth_what_ir_measures_says() -> None:
    """500 lists of graded labels with ties, which trec_eval orders by name from behind."""
    draw = Random(0)
    for _ in range(500):
        size = draw.randint(1, 12)
        labels = [draw.choice([0, 0, 0, 1, 2]) for _ in range(size)]
        scores = [draw.choice([0.0, 0.5, 0.25, draw.random()]) for _ in range(size)]
        order = sorted(range(size), key=lambda place: (np.float32(-scores[place]), -place))
        run = [ScoredDoc("q", f"{place:02}", score) for place, score in enumerate(scores)]
        known = [Qrel("q", f"{place:02}", label) for place, label in enumerate(labels)]
        wanted = calc_aggregate([RR, nDCG], known, run)
        if any(labels):
            assert reciprocal_rank(order, labels) == pytest.approx(wanted[RR], abs=1e-6)
            assert ndcg(order, labels) == pytest.approx(wanted[nDCG], abs=1e-6)
        else:
            assert reciprocal_rank(order, labels) == ndcg(order, labels) == 0
