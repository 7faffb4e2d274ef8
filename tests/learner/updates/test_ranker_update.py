"""The ranker's part of an update: what it learns from, and how its steps are taken."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as changed
from torch import Tensor

from headrace.config.sections.learner import RankerTraining
from headrace.protocol.messages.batches import BatchSequence, PolicyWindow, Shard, part_bytes
from learner.device import RankContext
from learner.process.weight_publishing import publish_ranker
from learner.ranking.model import SessionRanker, digest_of
from learner.updates.ranker_update import RankerSetup, RankerUpdate, clicked_lists
from tasks.procedural.base import prompt_row
from tasks.procedural.character_tokenizer import build_tokenizer
from tasks.procedural.search_world import REWRITING
from tests.learner.plain_engine import PlainEngine

START = Path(__file__).parents[3] / "recipes" / "models" / "sessions-cold"
CPU = torch.device("cpu")
TOKENIZER: Any = build_tokenizer(REWRITING.characters)
ANSWER = "Ka Kb"


def shard_of(count: int, *, rows: bool = True, first: int = 0) -> Shard:
    """So many answers that ended, and one window of an answer that goes on."""
    sequences, windows = [], []
    for number in range(first, first + count + 1):
        row = prompt_row(REWRITING, number, seed=1)
        prompt = TOKENIZER.encode(str(row.prompt))
        answer = [*TOKENIZER.encode(ANSWER), TOKENIZER.eos_token_id]
        ends = number < first + count
        sequences.append(
            BatchSequence(
                trajectory_id=number, group_id=number, opening=len(prompt),
                token_ids=np.array([*prompt, *answer], np.int32), sampled=[(0, len(answer))],
            )
        )  # fmt: skip
        windows.append(
            PolicyWindow(
                window_id=number << 16, trajectory_id=number, sequence=number - first, start=0,
                end=len(answer), length=len(answer), logprobs=np.zeros(len(answer), np.float32),
                loss_weights=np.ones(len(answer), np.float32), spans=[], finished=ends,
                row=json.dumps(row.info) if rows and ends else "",
            )
        )  # fmt: skip
    return Shard(sequences=sequences, windows=windows, values=[])


def fresh(**settings: Any) -> RankerSetup:
    torch.manual_seed(0)
    ranker = SessionRanker.load(START, CPU, longest=128)
    ranker.model.classifier.reset_parameters()
    config = RankerTraining.model_validate(settings)
    return RankerSetup(
        ranker, PlainEngine(ranker.model, lr=3e-3), config, TOKENIZER, reads_history=True
    )


def weights(part: RankerSetup) -> Tensor:
    return torch.cat([p.detach().flatten() for p in part.ranker.model.parameters()])


def trained(part: RankerSetup, shard: Shard, *, sound: bool = True) -> dict[str, float]:
    update = RankerUpdate(part, RankContext(device=CPU), shard, update=3)
    update.train(sound=sound)
    return update.figures()


def test_an_answer_that_ended_stands_in_the_place_of_its_query() -> None:
    shard = shard_of(3)
    found = list(clicked_lists(shard, TOKENIZER))
    assert len(found) == 3, "the answer that goes on has no click yet"
    for number, ranked in enumerate(found):
        assert ranked is not None
        info = prompt_row(REWRITING, number, seed=1).info
        assert ranked.query == ANSWER
        assert list(ranked.candidates) == info["candidates"]
        assert sum(ranked.labels) == 1
    assert not list(clicked_lists(shard_of(3, rows=False), TOKENIZER))
    bare = part_bytes(shard_of(1, rows=False).windows[0])
    assert part_bytes(shard.windows[0]) > bare + len(shard.windows[0].row) - 1


def test_of_an_episode_the_last_turn_alone_is_the_query() -> None:
    """The reward scores that one; a call of a tool before it is no query that anybody asked."""
    shard = shard_of(1)
    sequence, window = shard.sequences[0], shard.windows[0]
    prompt, answer = np.split(sequence.token_ids, [sequence.opening])
    call, told = TOKENIZER.encode("Xb"), TOKENIZER.encode(";")
    begun = len(call) + 1 + len(told)
    ids = [*prompt, *call, TOKENIZER.eos_token_id, *told, *answer]
    played = changed(
        sequence,
        token_ids=np.array(ids, np.int32),
        sampled=[(0, len(call) + 1), (begun, begun + answer.size)],
    )
    alone = Shard(sequences=[played], windows=[window], values=[])
    (ranked,) = clicked_lists(alone, TOKENIZER)
    assert ranked is not None
    assert ranked.query == ANSWER


def test_tags_that_the_reward_reads_are_of_the_query() -> None:
    tokenizer: Any = build_tokenizer(REWRITING.characters)
    tokenizer.backend_tokenizer.add_special_tokens(["[Q]", "[/Q]"])
    shard = shard_of(1)
    sequence, said = shard.sequences[0], tokenizer.encode(f"[Q]{ANSWER}[/Q]")
    ids = [*sequence.token_ids[: sequence.opening], *said, tokenizer.eos_token_id]
    tagged = changed(sequence, token_ids=np.array(ids, np.int32), sampled=[(0, len(said) + 1)])
    alone = Shard(sequences=[tagged], windows=shard.windows[:1], values=[])
    (ranked,) = clicked_lists(alone, tokenizer)
    assert ranked is not None
    assert ranked.query == f"[Q]{ANSWER}[/Q]"


def test_lists_are_drawn_and_are_not_always_those_of_the_longest() -> None:
    """A rank's sequences come longest first: the first lists would be of the longest sessions."""
    shard, part = shard_of(8), fresh(lists=2)
    updates = [RankerUpdate(part, RankContext(device=CPU), shard, update=i) for i in range(40)]
    assert {len(update._lists) for update in updates} == {2}
    assert len({ranked.candidates for update in updates for ranked in update._lists}) == 8
    again = RankerUpdate(part, RankContext(device=CPU), shard, update=7)
    assert again._lists == updates[7]._lists, "as after a rollback"


def test_clicks_teach(tmp_path: Path) -> None:
    part = fresh(lists=8, epochs=2, minibatches=2)
    shard = shard_of(8)
    losses = [trained(part, shard)["ranker/loss"] for _ in range(12)]
    assert losses[0] == pytest.approx(0.45, abs=0.3)
    assert losses[-1] < 0.5 * losses[0], losses
    figures = trained(part, shard)
    assert (figures["ranker/lists"], figures["ranker/steps"]) == (8, 4)
    version = publish_ranker(
        part.ranker, part.ranker.model.state_dict(), tmp_path, version=4, keep=2, tell=print
    )
    loaded = SessionRanker.load(Path(version.path), CPU, longest=128)
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, part.ranker.model.state_dict()[name]), name
    assert version.named == f"4-{digest_of(Path(version.path))}"
    for number in (9, 12):
        publish_ranker(
            part.ranker, loaded.model.state_dict(), tmp_path, version=number, keep=2, tell=print
        )
    assert sorted(path.name for path in (tmp_path / "rankers").iterdir()) == ["v12", "v9"]


def test_parts_of_a_batch_make_one_gradient() -> None:
    """Ranks share a step: their losses add up to the mean over all of their candidates."""
    shard, others = shard_of(3), shard_of(3, first=100)
    moved = [changed(window, sequence=window.sequence + 4) for window in others.windows]
    both_shards = [*shard.sequences, *others.sequences]
    whole = Shard(sequences=both_shards, windows=[*shard.windows, *moved], values=[])

    class Two(RankContext):
        """One of two ranks; the other has as many candidates."""

        def total(self, x: Tensor) -> Tensor:
            return x * 2

    gradients = []
    for place, piece in ((Two(device=CPU), shard), (Two(device=CPU), others)):
        part = fresh()
        part.ranker.model.config.classifier_dropout = 0.0
        part.ranker.model.dropout.p = 0.0
        RankerUpdate(part, place, piece, update=1).train(sound=True)
        gradients.append(part.engine.gradients)  # type: ignore[attr-defined]
    part = fresh()
    part.ranker.model.dropout.p = 0.0
    RankerUpdate(part, RankContext(device=CPU), whole, update=1).train(sound=True)
    for name, value in part.engine.gradients.items():  # type: ignore[attr-defined]
        both = gradients[0][name] + gradients[1][name]
        assert torch.allclose(value, both, atol=1e-6), name


def test_what_cannot_be_learnt_from_changes_nothing() -> None:
    part = fresh()
    before = weights(part)
    shard = shard_of(2)
    assert trained(part, shard, sound=False)["ranker/steps"] == 0
    assert trained(part, shard_of(2, rows=False)) == {
        "ranker/lists": 0, "ranker/left_out": 0, "ranker/steps": 0, "ranker/lr": part.engine.lr
    }  # fmt: skip
    for row in ('{"candidates": []}', '{"query": "q", "candidates": ["a"], "labels": [0]}'):
        windows = [changed(window, row=row) for window in shard.windows]
        figures = trained(part, Shard(sequences=shard.sequences, windows=windows, values=[]))
        assert (figures["ranker/left_out"], figures["ranker/steps"]) == (3, 0)
    assert torch.equal(before, weights(part))
    with torch.no_grad():
        next(part.ranker.model.parameters()).fill_(float("nan"))
    update = RankerUpdate(part, RankContext(device=CPU), shard, update=1)
    update.train(sound=True)
    assert (update.log.dropped, update.log.applied) == (1, 0), "the update is broken off"
