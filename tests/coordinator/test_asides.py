"""What the value model is told of a prompt: from the anchors to the sequences of a batch."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from coordinator.dispatch.prompts import Prompts
from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import problems
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.records.record_types import GroupIssued
from tests.coordinator.world import World, make_config

RECIPES = Path(__file__).parents[2] / "recipes"
ANCHOR = "a14+3=3;#3"


@pytest.fixture(name="anchors")
def _anchors(tmp_path: Path) -> Path:
    """Anchors of the first two training prompts; the second is very long."""
    path = tmp_path / "anchors.jsonl"
    path.write_text(json.dumps({"prompt": "none", "anchor": ANCHOR}))
    prompts = Prompts(recipe(path))
    first, second = (prompts.next_group(position, 0, 0).prompt for position in (0, 1))
    rows = [{"prompt": first, "anchor": ANCHOR}, {"prompt": second, "anchor": "1" * 99}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def recipe(anchors: Path, *overrides: str) -> RunConfig:
    file = f"reward.sources.pairs.options.anchors={anchors}"
    return load_recipe(RECIPES / "pairwise-ppo.toml", [file, *overrides])


def test_a_group_has_the_tokens_of_its_anchor_and_its_prompt_stays(anchors: Path) -> None:
    prompts = Prompts(recipe(anchors))
    first, second, third = (prompts.next_group(position, 0, 0) for position in (0, 1, 2))
    assert first.aside is not None
    assert second.aside is not None
    tokenizer: Any = prompts._tokenizer
    assert first.aside.tolist() == [
        *tokenizer.encode(ANCHOR)[-len(ANCHOR) :],
        tokenizer.eos_token_id,
    ]
    assert second.aside.size == 40
    assert third.aside is None
    plain = Prompts(recipe(anchors, "algorithm.value.context=none")).next_group(0, 0, 0)
    assert plain.aside is None
    assert plain.prompt_ids.tolist() == first.prompt_ids.tolist()


def test_an_anchor_of_a_column(tmp_path: Path, anchors: Path) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": p, "answer": "3", "gold": ANCHOR} for p in ("3a14=", "4a14=", "5a14=")]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (RECIPES / "pairwise-ppo.toml").read_text()
    text = text.replace('kind = "tracking"', f'kind = "dataset"\npath = "{data}"')
    text = text.replace('anchors = "anchors.jsonl"', 'column = "gold"')
    path = tmp_path / "recipe.toml"
    path.write_text("".join(line for line in text.splitlines(True) if "_terms" not in line))
    model = f"model.path={RECIPES / 'models' / 'tracking-cold'}"
    from_column = Prompts(load_recipe(path, [model])).next_group(0, 0, 0)
    from_file = Prompts(recipe(anchors)).next_group(0, 0, 0)
    assert from_column.aside is not None
    assert from_file.aside is not None
    assert from_column.aside.tolist() == from_file.aside.tolist()


def test_the_sequences_of_a_batch_have_it(anchors: Path) -> None:
    aside = Prompts(recipe(anchors)).next_group(0, 0, 0).aside
    world = World(make_config(schedule={"mode": "windowed", "window": 4, "batch_windows": 1}))
    note = world.note

    def told(record: Any) -> None:
        note(replace(record, aside=aside) if isinstance(record, GroupIssued) else record)

    world.note = told  # type: ignore[method-assign]
    (trajectory,) = world.issue()
    world.lease(trajectory)
    world.chunk(trajectory, 4, "stop")
    world.reward(trajectory)
    prepared = world.take()
    assert prepared is not None
    (sequence,) = [s for shards in prepared.parts for shard in shards for s in shard.sequences]
    assert sequence.aside is aside is not None
    assert (sequence.opening, sequence.token_ids.size) == (2, 6)
    assert world.replayed().account.groups[trajectory.group_id].aside is aside


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no anchors at"):
        Prompts(recipe(tmp_path / "nowhere.jsonl"))
    (line,) = problems(load_recipe(RECIPES / "tracking.toml", ["algorithm.value.context=anchor"]))
    assert line.startswith('algorithm.value.context: "anchor" is for rewards')
