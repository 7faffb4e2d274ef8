"""Rules of the reward section: combinations of values that cannot work, for each source.

In: the section. Out: one line for every rule that it breaks, with the key where it stands.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.config.reward import RewardConfig, SourceConfig


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
        judge = source.options.get("judge") if source.kind == "judge" else None
        if isinstance(judge, str) and judge not in reward.judges:
            at = f"reward.sources.{name}" if reward.sources else "reward"
            known = ", ".join(sorted(reward.judges)) or "none"
            yield f"{at}.options.judge: there is no reward.judges.{judge} (there are {known})"


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
