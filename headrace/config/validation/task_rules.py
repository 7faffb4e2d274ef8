"""Rules of a task's own keys: mixtures, their schedules, and bands.

In: a task's configuration. Out: a line for each rule that it breaks.
"""

from collections.abc import Iterator
from itertools import pairwise

from headrace.config.sections.task import (
    DatasetConfig,
    MixtureConfig,
    TaskBase,
    TaskConfig,
    members,
)


def task_problems(task: TaskConfig) -> Iterator[str]:
    """One line for every rule that is broken."""
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
    if isinstance(task, MixtureConfig):
        yield from _schedule_problems(task)


def _schedule_problems(task: MixtureConfig) -> Iterator[str]:
    for number, point in enumerate(task.schedule):
        key = f"task.schedule.{number}.weights"
        if unknown := sorted(point.weights.keys() - task.datasets.keys()):
            yield f"{key}: there is no dataset {unknown[0]!r}; there is: {', '.join(task.datasets)}"
        if not sum(point.weights.values()) > 0:
            yield f"{key}: are 0 in sum; give a dataset a weight above 0"
    if any(one.update >= other.update for one, other in pairwise(task.schedule)):
        yield "task.schedule: updates must rise from point to point"
