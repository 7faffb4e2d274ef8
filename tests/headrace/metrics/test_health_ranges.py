"""When a metric has left its band: after so many updates in a row, and back after as many."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metrics.health_ranges import (
    BANDS,
    MIN_UPDATES_BACK,
    BandCrossing,
    alert_sentence,
    alerts,
    band_of,
    limits_of,
    rule_text,
)
from headrace.metrics.registry import METRICS

ENTROPY = "actor/entropy"
LOW, FOR = 0.02, BANDS[ENTROPY].updates


def series(*stretches: tuple[float | None, int], name: str = ENTROPY) -> dict[str, Any]:
    """Values, each for so many updates, from update 1 on."""
    values = [value for value, times in stretches for _ in range(times)]
    return {name: list(enumerate(values, 1))}


@pytest.mark.parametrize("name", BANDS)
def test_a_band_is_one_of_a_single_number_that_is_described(name: str) -> None:
    band, info = BANDS[name], METRICS[name]
    assert not info.bins
    assert info.healthy
    assert band.updates >= 1
    assert (band.low, band.high, band.times) != (None, None, None)
    assert band.times is None or (band.low, band.high) == (None, None)
    assert band.low is None or band.high is None or band.low < band.high
    assert band.why
    assert not band.why.endswith(".")
    assert rule_text(name)


def test_golden_collapse_of_the_entropy() -> None:
    (alert,) = alerts(series((0.5, 30), (0.0125, FOR + 4)))
    assert alert.text == "entropy under 0.02 for 24 updates"
    assert (alert.metric, alert.side, alert.bound) == (ENTROPY, "under", LOW)
    assert (alert.since, alert.last, alert.updates, alert.worst) == (31, 54, 24, 0.0125)
    assert alert.now
    assert alert_sentence(alert).startswith(
        "entropy under 0.02 for 24 updates, since update 31: the po"
    )


def test_a_short_visit_outside_is_none_and_a_short_one_inside_ends_none() -> None:
    assert alerts(series((0.5, 30), (0.01, FOR - 1), (0.5, 1), (0.01, FOR - 1))) == []
    (alert,) = alerts(series((0.01, FOR), (0.5, FOR - 1), (0.01, 2)))
    assert (alert.since, alert.last, alert.updates, alert.now) == (1, 2 * FOR + 1, FOR + 2, True)


def test_what_is_back_for_long_has_ended_and_may_begin_again() -> None:
    found = alerts(series((0.01, FOR), (0.5, FOR), (0.004, FOR + 1), (0.5, FOR), (0.5, 3)))
    assert [(a.since, a.last, a.now, a.worst) for a in found] == [
        (2 * FOR + 1, 3 * FOR + 1, False, 0.004),
        (1, FOR, False, 0.01),
    ]
    assert ", updates 1 to 20: " in alert_sentence(found[1])


def test_the_bound_itself_is_inside_and_what_is_unknown_is_neither() -> None:
    assert alerts(series((LOW, 3 * FOR))) == []
    (alert,) = alerts(series((0.01, FOR - 1), (None, 7), (0.01, 1)))
    assert alert.updates == FOR
    assert alert.last == FOR + 7


def test_those_that_last_come_first() -> None:
    both = series((0.01, 60)) | series((0.5, 20), (0.01, 40), name="actor/pg_clipfrac")
    assert [(a.metric, a.now) for a in alerts(both)] == [
        (ENTROPY, True),
        ("actor/pg_clipfrac", False),
    ]


def test_some_bands_are_relative_to_what_is_usual() -> None:
    name = "actor/grad_norm"
    assert limits_of(name, [0.5, 0.4, 0.6]) == (None, 5.0)
    assert limits_of(name, []) is None
    assert limits_of(name, [0.0, 0.0]) is None
    (alert,) = alerts(series((0.5, 30), (6.0, 3), (0.5, 3), name=name))
    assert alert.text == ("gradient norm of the policy over 5 (10 times the usual) for 3 updates")
    assert alerts(series((0.5, 30), (6.0, 2), (0.5, 3), name=name)) == []


def test_a_source_is_named_and_a_share_is_in_percent() -> None:
    name = "rewards/judge/failed"
    assert band_of(name) is BANDS["rewards/NAME/failed"]
    (alert,) = alerts(series((0.5, 5), name=name))
    assert alert.text == "failed scorings of judge over 5 % for 5 updates"
    assert band_of("reward/mean") is None
    assert alerts(series((0.0, 99), name="reward/mean")) == []


def test_one_skipped_step_is_worth_a_word() -> None:
    (alert,) = alerts(series((0.0, 5), (1.0, 1), (0.0, 5), name="actor/skipped_steps"))
    assert alert.text == "skipped steps of the policy over 0 for 1 update"
    assert not alert.now


def test_golden_crossing_that_goes_to_and_fro() -> None:
    """Outside every other update, then inside for long: one alert that ends once."""
    crossing = BandCrossing()
    seen = [1, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    turns = {at: turn for at, out in enumerate(seen) if (turn := crossing.add_update(bool(out)))}
    assert turns == {0: "begins", 14: "ends", 16: "begins"}
    name = "actor/skipped_steps"
    now_and_then = series(*[(1.0, 1), (0.0, 3)] * 4, (0.0, MIN_UPDATES_BACK), name=name)
    (alert,) = alerts(now_and_then)
    assert (alert.since, alert.last, alert.updates, alert.now) == (1, 13, 4, False)
    (alert,) = alerts(series((1.0, 1), (0.0, MIN_UPDATES_BACK - 1), name=name))
    assert alert.now


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 8))
def test_turns_alternate_and_each_follows_enough_in_a_row(seen: list[bool], needed: int) -> None:
    crossing, turns = BandCrossing(needed), list[str]()
    for place, outside in enumerate(seen):
        turn = crossing.add_update(outside)
        if turn is not None:
            turns.append(turn)
            long = needed if turn == "begins" else max(needed, MIN_UPDATES_BACK)
            assert seen[place - long + 1 : place + 1] == [turn == "begins"] * long
    assert turns == [("begins", "ends")[i % 2] for i in range(len(turns))]
    assert crossing.stands == (len(turns) % 2 == 1)


@given(st.lists(st.sampled_from([0.01, 0.5, None]), max_size=80))
def test_alerts_are_apart_and_count_what_is_outside(values: list[float | None]) -> None:
    found = sorted(alerts({ENTROPY: list(enumerate(values, 1))}), key=lambda a: a.since)
    for alert in found:
        inside = values[alert.since - 1 : alert.last]
        assert alert.updates == inside.count(0.01) >= FOR
        assert inside[0] == inside[-1] == 0.01
    assert all(a.last < b.since for a, b in pairwise(found))
    assert [a.now for a in found[:-1]] == [False] * len(found[:-1])
