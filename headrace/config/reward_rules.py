"""Rules of the reward section: combinations of values that cannot work, for each source.

In: the section. Out: one line for every rule that it breaks, with the key where it stands.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.config.reward import JUDGES_CONCURRENCY, RewardConfig, SourceConfig


class SourceRule(NamedTuple):
    """A combination of a source's values that cannot work."""

    key: str
    broken: Callable[[SourceConfig], bool]
    advice: str
    """A format string with the source as `s`, and `at`, where its keys stand."""


SOURCE_RULES = (
    SourceRule(
        "function",
        lambda s: (s.kind == "function") != bool(s.names()),
        'goes together with {at}.kind = "function"',
    ),
    SourceRule(
        "functions",
        lambda s: s.function is not None and bool(s.functions),
        "does not go with {at}.function: move that one into the list",
    ),
    SourceRule(
        "adapter",
        lambda s: s.kind != "function" and s.adapter is not None,
        'goes together with {at}.kind = "function"',
    ),
    SourceRule(
        "options",
        lambda s: s.kind == "function" and bool(s.options),
        "belong to the other kinds; what a function is told stands in the dataset's columns",
    ),
    SourceRule(
        "correct_reward",
        lambda s: s.kind == "function" and s.correct_reward != 1.0,
        "a function says itself what it pays; which scores of a function mean a right answer is "
        "{at}.correct_threshold",
    ),
    SourceRule(
        "wrong_reward",
        lambda s: s.kind != "function" and s.wrong_reward >= s.correct_reward,
        "{s.wrong_reward:g} is not less than {at}.correct_reward = {s.correct_reward:g}, so "
        "nothing can be learned from it",
    ),
)


def reward_problems(reward: RewardConfig) -> Iterator[str]:
    """One line for every rule that the section breaks."""
    for name, source in reward.each().items():
        at = f"reward.sources.{name}" if reward.sources else "reward"
        for rule in SOURCE_RULES:
            if rule.broken(source):
                yield f"{at}.{rule.key}: {rule.advice.format(s=source, at=at)}"
    yield from _of_judges(reward)
    if strays := reward.strays():
        yield (
            f"reward.{strays[0]}: belongs to a source, and there are reward.sources: write it into "
            "their tables"
        )
    yield from _of_route(reward)


def _of_judges(reward: RewardConfig) -> Iterator[str]:
    for name, source in reward.each().items():
        if source.kind != "judge":
            continue
        at = f"reward.sources.{name}" if reward.sources else "reward"
        judge = source.options.get("judge")
        if isinstance(judge, str) and judge not in reward.judges:
            known = ", ".join(sorted(reward.judges)) or "none"
            yield f"{at}.options.judge: there is no reward.judges.{judge} (there are {known})"
        rate = source.options.get("requests_per_minute")
        if isinstance(rate, int) and (needed := _turns(source)) > rate * source.timeout_s / 60:
            yield (
                f"{at}.options.requests_per_minute: {needed} questions in flight take "
                f"{60 * needed / max(rate, 1):.0f} s at this rate, and {at}.timeout_s is "
                f"{source.timeout_s:g}: raise that, or lower {at}.concurrency"
            )


def _turns(source: SourceConfig) -> int:
    """Questions that a child of a judge's source has in flight."""
    orders = 2 if source.options.get("mode") == "pairwise" else 1
    return orders * (source.concurrency or JUDGES_CONCURRENCY)


def _of_route(reward: RewardConfig) -> Iterator[str]:
    route = reward.route
    if not reward.sources:
        if route.targets() or route.column is not None:
            yield "reward.route: leads to reward.sources.NAME, and there are none"
        return
    for target in dict.fromkeys(route.targets()):
        if target not in reward.sources:
            known = ", ".join(sorted(reward.sources))
            yield f"reward.route: {target!r} is no source (there are {known})"
    if route.values and route.column is None:
        yield "reward.route.values: are values of reward.route.column, which is not set"
