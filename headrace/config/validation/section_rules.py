"""Rules of rewards and tasks: contradictory values, for each source and each dataset.

In: the section. Out: one line for every rule that it breaks, with the key where it stands.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from headrace.config.sections.reward import JUDGES_CONCURRENCY, RewardConfig, SourceConfig
from headrace.config.sections.task import (
    DatasetConfig,
    MixtureConfig,
    TaskBase,
    TaskConfig,
    members,
)


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
        "answer_marker",
        lambda s: s.kind == "function" and s.answer_marker is not None,
        "belongs to the other kinds; a function finds the answer in the response itself",
    ),
    SourceRule(
        "correct_reward",
        lambda s: s.pays_itself() and s.correct_reward != 1.0,
        "a function says itself what it pays; which scores of a function mean a right answer is "
        "{at}.correct_threshold, and {at}.score_range prices its scores",
    ),
    SourceRule(
        "score_range",
        lambda s: s.score_range is not None and s.score_range[0] >= s.score_range[1],
        "should be [low, high] with low below high, such as [-1, 1]",
    ),
    SourceRule(
        "score_range",
        lambda s: s.score_range is not None and s.unit == "line",
        "does not go with lines: what they earn is reward.process.failing and passing",
    ),
    SourceRule(
        "wrong_reward",
        lambda s: not s.pays_itself() and s.wrong_reward >= s.correct_reward,
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
        yield from _of_judge(reward, source, at)
    if strays := reward.strays():
        yield (
            f"reward.{strays[0]}: belongs to a source, and there are reward.sources: write it into "
            "their tables"
        )
    yield from _of_route(reward)
    audit = reward.audit
    if audit is not None and audit.source not in reward.sources:
        known = f"there are {', '.join(sorted(reward.sources))}" if reward.sources else "none is"
        yield f"reward.audit.source: {audit.source!r} is not among reward.sources ({known})"
    elif audit is not None and reward.sources[audit.source].unit != "trajectory":
        yield f"reward.audit.source: {audit.source!r} does not score answers one by one"
    yield from _of_process(reward)


def _of_judge(reward: RewardConfig, source: SourceConfig, at: str) -> Iterator[str]:
    if source.kind == "judge":
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
        elif reward.sources[target].unit == "line":
            yield (
                f"reward.route: {target!r} scores lines, and a prompt needs a score of its whole "
                "answer: route it to another source, and name this one in reward.process.source"
            )
    if route.values and route.column is None:
        yield "reward.route.values: are values of reward.route.column, which is not set"


def _of_process(reward: RewardConfig) -> Iterator[str]:
    """A source of lines is the one of `reward.process`, and stands beside another."""
    named, sources = reward.process.source, reward.each()
    if named is not None and named not in sources:
        known = ", ".join(sorted(sources))
        yield f"reward.process.source: {named!r} is no source (there are {known})"
    elif named is not None and sources[named].unit != "line":
        yield (
            f'reward.process.source: {named!r} has the unit "{sources[named].unit}", and lines '
            f'are scored by a source with unit = "line"'
        )
    for name, source in sources.items():
        if source.unit == "line" and not reward.sources:
            yield (
                'reward.unit: "line" stands beside a source that scores whole answers: write both '
                "as reward.sources.NAME, and name this one in reward.process.source"
            )
        elif source.unit == "line" and name != named:
            yield (
                f"reward.sources.{name}.unit: nobody asks for lines: name {name!r} in "
                "reward.process.source"
            )


def task_problems(task: TaskConfig) -> Iterator[str]:
    """Yield a line for each rule of mixtures, schedules and bands that a task breaks."""
    for domain, member in members(task).items():
        key = f"task.datasets.{domain}" if domain else "task"
        if domain and any(
            getattr(member, name) != field.default for name, field in TaskBase.model_fields.items()
        ):
            yield f"{key}: has a limit of lengths; set it for the mixture, in task"
        bands = member.bands if isinstance(member, DatasetConfig) else None
        if bands is not None and any(low >= high for low, high in pairwise(bands.edges)):
            yield f"{key}.bands.edges: must rise"
        if bands is not None and len(bands.ask) != len(bands.edges) + 1:
            yield f"{key}.bands.ask: needs {len(bands.edges) + 1} numbers, one more than edges"
    if not isinstance(task, MixtureConfig):
        return
    for number, point in enumerate(task.schedule):
        key = f"task.schedule.{number}.weights"
        if unknown := sorted(point.weights.keys() - task.datasets.keys()):
            yield f"{key}: there is no dataset {unknown[0]!r}; there is: {', '.join(task.datasets)}"
        if not sum(point.weights.values()) > 0:
            yield f"{key}: are 0 in sum; give a dataset a weight above 0"
    if any(one.update >= other.update for one, other in pairwise(task.schedule)):
        yield "task.schedule: updates must rise from point to point"
