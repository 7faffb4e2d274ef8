"""The largest edit distance in a group: golden cases, a slow twin, which groups are looked at."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.scoring import group_diversity
from coordinator.scoring.group_diversity import (
    GroupDiversity,
    chosen,
    largest_distance,
)
from headrace.data.edit_distance import edit_distance
from tests.coordinator.world import World, make_config


def twin(a: str, b: str) -> int:
    """The table of distances, row by row."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


def test_golden_distances_of_three_sums() -> None:
    a, b, c = "12+7=19", "12+7=18", "7+12=19"
    assert sorted((edit_distance(a, b), edit_distance(a, c), edit_distance(b, c))) == [1, 4, 5]
    assert largest_distance([a, b, c]) == 5
    assert largest_distance([a, a, a]) == largest_distance([a]) == 0


@given(st.text("ab~", max_size=90), st.text("ab~", max_size=90))
def test_it_is_the_twins_distance(a: str, b: str) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == twin(a, b)


def test_a_share_is_a_share_and_the_same_one_every_time() -> None:
    names = [f"3/{i}" for i in range(20_000)]
    found = [name for name in names if chosen(name, 0.02)]
    assert 300 < len(found) < 500
    assert found == [name for name in names if chosen(name, 0.02)]
    assert set(found) <= {name for name in names if chosen(name, 0.1)}
    assert all(chosen(name, 1.0) for name in names[:100])


def test_a_whole_group_is_looked_at_once_and_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_diversity, "GROUP_SHARE", 1.0)
    monkeypatch.setattr(group_diversity, "EVERY_S", 0.0)
    schedule = {"num_generations": 3, "batch_windows": 6}
    world = World(make_config(schedule=schedule))
    told: list[tuple[str, int]] = []
    decode: Any = lambda ids: "".join(chr(97 + int(i)) for i in ids)  # noqa: E731
    threads: list[threading.Thread] = []

    def measured(texts: Sequence[str]) -> int:
        threads.append(threading.current_thread())
        return largest_distance(texts)

    monkeypatch.setattr(group_diversity, "largest_distance", measured)
    watched = GroupDiversity(
        decode, lambda source, distance: told.append((source, distance)), seed=0
    )
    members = world.issue()
    for trajectory, tokens in zip(members, (1, 3, 4), strict=True):
        world.lease(trajectory)
        world.chunk(trajectory, tokens, finish="stop")
    for trajectory in members:
        watched.add("judge", members)
        asyncio.run(watched.measure())
        assert not told
        world.reward(trajectory)
    watched.add("judge", members)
    asyncio.run(watched.measure())
    asyncio.run(watched.measure())
    assert told == [("judge", 3)]
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_one_group_at_a_time_and_of_it_what_its_bounds_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first two answers of three, equal in one group, and of each the first two characters."""
    monkeypatch.setattr(group_diversity, "EVERY_S", 60.0)
    for name, bound in (("GROUP_SHARE", 1.0), ("MOST_ANSWERS", 2), ("MOST_CHARACTERS", 2)):
        monkeypatch.setattr(group_diversity, name, bound)
    world = World(make_config(schedule={"num_generations": 3, "batch_windows": 6}))
    told: list[int] = []
    decode: Any = lambda ids: "abc"[len(ids)] * 9  # noqa: E731
    watched = GroupDiversity(decode, lambda _, distance: told.append(distance), seed=0)
    for lengths in ((1, 1, 4), (1, 4, 4)):
        members = world.issue()
        for trajectory, tokens in zip(members, lengths, strict=True):
            world.lease(trajectory)
            world.chunk(trajectory, tokens, finish="stop")
            world.reward(trajectory)
        watched.add("judge", members)
    for _ in range(2):
        asyncio.run(watched.measure())
        assert told == [0]
    watched._next = 0.0
    asyncio.run(watched.measure())
    assert told == [0, 2]
