"""Soak and fleet: what they compute from looks and rows, and a short real run of each."""

import argparse
import asyncio
import os
from pathlib import Path

import pytest

from benchmarks.robustness.fleet import measure, pace, summary
from benchmarks.robustness.soak import MemorySample, growth, run


def test_growth_is_the_end_of_a_stretch_over_its_second_third() -> None:
    flat = [MemorySample(n, 100.0 if n < 30 else 200.0) for n in range(101)]
    growing = [MemorySample(n, 100.0 + n) for n in range(100, 201)]
    found = growth([flat, growing])
    first = found["memory"][0]
    assert (first["from"], first["to"], first["warm_mb"], first["end_mb"]) == (0, 100, 200.0, 200.0)
    assert first["tenths_mb"] == [100, 100, 100, *[200] * 7]
    # Answers 100 to 200: 250 MiB half-way, 295 in the last tenth.
    assert found["memory"][1]["warm_mb"] == pytest.approx(250, abs=1)
    assert found["growth"] == pytest.approx(295 / 250 - 1, abs=0.01)
    assert found["growth_of_run"] == pytest.approx(295 / 200 - 1, abs=0.01)


def test_a_stretch_that_was_over_at_once_has_its_end() -> None:
    (line,) = growth([[MemorySample(7, 50.0)]])["memory"]
    assert (line["from"], line["to"], line["warm_mb"], line["end_mb"]) == (7, 7, 50.0, 50.0)


def test_a_fleet_ends_where_it_brings_less_than_half_or_loses_a_peer() -> None:
    def rows(size: int, rate: float, lost: int = 0) -> list[dict[str, float]]:
        return [{"generators": size, "trajectories_per_s": rate, "lost": lost}] * 3

    assert summary({8: rows(8, 100), 64: rows(64, 90)})["ends_at"] is None
    assert summary({64: rows(64, 90), 8: rows(8, 100), 999: rows(999, 40)})["ends_at"] == 999
    assert summary({8: rows(8, 100), 64: rows(64, 90, lost=1), 9: rows(9, 9)})["ends_at"] == 9


@pytest.mark.slow
def test_a_short_soak_with_a_kill_loses_nothing(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    found = asyncio.run(
        run(tmp_path / "run", trajectories=20_000, restarts=1, generators=2, core=core)
    )
    assert (found["findings"], found["balanced"], len(found["restart_s"])) == (0, True, 1)
    assert [line["to"] >= 10_000 for line in found["memory"]] == [True, True]


@pytest.mark.slow
def test_a_fleet_of_many_is_served_without_losing_one(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    found = asyncio.run(
        measure(tmp_path / "run", generators=60, ranks=8, trajectories=8000, core=core)
    )
    assert found["lost"] == 0
    assert found["trajectories_per_s"] > 0


@pytest.mark.slow
def test_generators_that_fall_silent_lose_no_acknowledged_token(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    load = argparse.Namespace(ranks=2, slots=40, rates=[50.0], seconds=2.0, kill=3, silence_s=3.0)

    async def rows() -> list[dict[str, float]]:
        return [row async for row in pace(tmp_path / "run", load, generators=10, core=core)]

    (row,) = asyncio.run(rows())
    assert (row["lost_generators"], row["lost_tokens"]) == (3, 0)
    assert row["tokens_per_s"] > 0
