"""The arithmetic of a recipe, against numbers worked out by hand."""

from collections.abc import Callable

import pytest

from headrace.config.explain import adaptive_lambda, facts, prefix_cost
from headrace.config.run import RunConfig

Make = Callable[..., RunConfig]


def values(config: RunConfig) -> dict[str, float | str]:
    return {fact.name: fact.value for fact in facts(config)}


def test_streaming_arithmetic(make_config: Make) -> None:
    found = values(
        make_config("schedule.batch_windows=128", "schedule.max_staleness=3", "stop.updates=9")
    )
    assert found["tokens per update"] == 128 * 60
    assert found["windows per trajectory"] == 4
    assert found["updates spanned"] == 4
    assert found["back-pressure"] == 4 * 128
    assert found["in flight"] == 128
    assert found["chunk"] == 60
    assert found["ends"] == "9 updates"


def test_carried_keys_leave_no_prefix_to_compute(make_config: Make) -> None:
    assert values(make_config("schedule.window=60"))["prefix cost"] == 2.5
    found = values(make_config("schedule.window=60", "learner.context=carried"))
    assert found["prefix cost"] == 1.0


def test_lockstep_has_no_staleness(make_config: Make) -> None:
    found = values(make_config("schedule.mode=synchronous"))
    assert found["staleness"] == 0
    assert found["window"] == 240
    assert found["prefix cost"] == 1
    assert "never" in str(found["ends"])


def test_a_stream_of_plain_policy_gradient_says_that_age_is_not_corrected(
    make_config: Make,
) -> None:
    overrides = ("algorithm.policy_loss.kind=reinforce", "schedule.max_staleness=2")
    assert values(make_config(*overrides))["correction for age"] == "none"
    assert "correction for age" not in values(make_config(*overrides, "algorithm.ratio.kind=tis"))


@pytest.mark.parametrize(
    ("length", "window", "cost"), [(240, 240, 1.0), (240, 60, 2.5), (100, 60, 1.6), (30, 60, 1.0)]
)
def test_prefix_cost(length: int, window: int, cost: float) -> None:
    assert prefix_cost(length, window) == pytest.approx(cost)


def test_prefix_cost_tends_to_half_the_windows() -> None:
    assert prefix_cost(64_000, 64) == pytest.approx(64_000 / 128, rel=0.01)


def test_lambda_at_lengths(make_config: Make) -> None:
    assert adaptive_lambda(0.05, 1000) == pytest.approx(0.98)
    assert adaptive_lambda(0.05, 10) == 0.0
    found = values(make_config("algorithm.advantages.length_adaptive_alpha=0.5"))
    assert found["lambda at 15 tokens"] == 0.95
    assert found["lambda at 60 tokens"] == pytest.approx(1 - 1 / 30, abs=1e-4)
    assert values(make_config())["lambda"] == 0.95
