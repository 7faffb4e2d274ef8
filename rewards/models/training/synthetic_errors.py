"""Examples of a procedural task: right answers, and answers with one slip.

In: how many examples, how long the prompts are, a seed. Out: pairs or labelled answers, the same
for the same arguments. A slip is one wrong result in an answer that is worked out step by step; all
that follows goes on from it, so that the answer is wrong in the end, and every line from the slip
on is labelled -1. Of the task `shapes` they are captions with more and fewer faults.
"""

from collections.abc import Callable
from functools import partial
from random import Random

from headrace.config.sections.reward_model import TaskDataConfig
from headrace.errors import UserError
from rewards.models.training.examples import Demonstration, LabelledAnswer, PreferencePair
from tasks.datasets.source import PROCEDURAL_TASKS
from tasks.procedural import chain_sums, shapes, tracking
from tasks.procedural.base import ProceduralTask, draw_prompt

SEPARATOR = ";"
Step = tuple[str, Callable[[int], int]]
"""Beginning of a step, and its result by the one before."""


def pairs(config: TaskDataConfig, *, seed: int) -> list[PreferencePair]:
    """A right answer and one with a slip to each prompt."""
    made = []
    for index in range(config.examples):
        rng = Random(f"pairs/{config.task}/{seed}/{index}")
        if config.task == "shapes":
            made.append(_captions(config, rng, f"example {index}"))
            continue
        prompt, steps = _prompt(config, rng)
        chosen = _answer(config, prompt)
        rejected = _answer(config, prompt, rng.randrange(steps), rng)
        made.append(
            PreferencePair(prompt, "".join(chosen), "".join(rejected), where=f"example {index}")
        )
    return made


def demonstrations(config: TaskDataConfig, *, seed: int) -> list[Demonstration]:
    """A right answer to each prompt, worked out; UserError for captions."""
    if config.task not in _WORK:
        raise UserError(f"objective.kind = 'sft': answers of {config.task} are not made here")
    made = []
    for index in range(config.examples):
        prompt, _ = _prompt(config, Random(f"sft/{config.task}/{seed}/{index}"))
        made.append(Demonstration(prompt, "".join(_answer(config, prompt)), f"example {index}"))
    return made


def labelled(config: TaskDataConfig, *, seed: int) -> list[LabelledAnswer]:
    """An answer to each prompt, every second one with a slip; UserError for captions."""
    if config.task not in _WORK:
        raise UserError(f"objective.kind = 'lines': answers of {config.task} have no lines")
    made = []
    for index in range(config.examples):
        rng = Random(f"lines/{config.task}/{seed}/{index}")
        prompt, steps = _prompt(config, rng)
        slip = rng.randrange(steps) if index % 2 else None
        lines = _answer(config, prompt, slip, rng)
        # The last line only repeats the result of the one before.
        good = steps + 1 if slip is None else slip
        labels = tuple(1.0 if line < good else -1.0 for line in range(len(lines)))
        made.append(LabelledAnswer(prompt, tuple(lines), labels, f"example {index}"))
    return made


def _captions(config: TaskDataConfig, rng: Random, where: str) -> PreferencePair:
    """Two captions of an image, of which one has more faults."""
    problem, _ = _prompt(config, rng, shapes.asking({shapes.DESCRIBE: 1.0}))
    scene, _ = shapes.read_prompt(problem)
    return PreferencePair(shapes.show(problem), *shapes.caption_pair(scene, rng), where=where)


def _prompt(
    config: TaskDataConfig, rng: Random, task: ProceduralTask | None = None
) -> tuple[str, int]:
    """A prompt and how many steps its answer has."""
    task = task or PROCEDURAL_TASKS[config.task]
    if not config.min_terms <= config.max_terms <= task.most_terms:
        raise UserError(
            f"data.min_terms = {config.min_terms} and data.max_terms = {config.max_terms}: "
            f"{config.task} needs min_terms <= max_terms <= {task.most_terms}"
        )
    terms = rng.randint(config.min_terms, config.max_terms)
    return draw_prompt(task, rng, terms), terms


def _answer(
    config: TaskDataConfig, prompt: str, slip: int | None = None, rng: Random | None = None
) -> list[str]:
    """The lines of an answer; the result of step `slip` is a wrong one."""
    value, steps, results = _WORK[config.task](prompt)
    lines = []
    for index, (written, step) in enumerate(steps):
        result = step(value)
        if index == slip and rng is not None:
            result = rng.choice([other for other in results if other != result])
        lines.append(f"{written}+{value}={result}{SEPARATOR}")
        value = result
    return [*lines, f"#{value}"]


def _sums(prompt: str) -> tuple[int, list[Step], range]:
    """Return the start of a chain of sums, its steps, and the possible results."""
    digits = chain_sums.read_prompt(prompt)
    names = chain_sums.LABELS
    steps: list[Step] = [(f"{names[i]}{d}", partial(_add, d)) for i, d in enumerate(digits)]
    return 0, steps, range(10)


def _add(digit: int, total: int) -> int:
    return (total + digit) % 10


def _swaps(prompt: str) -> tuple[int, list[Step], range]:
    """The same of swapped cups."""
    problem = tracking.read_prompt(prompt)
    names = tracking.LABELS
    steps: list[Step] = [
        (f"{names[i]}{swap[0]}{swap[1]}", partial(tracking.follow, swap=swap))
        for i, swap in enumerate(problem.swaps)
    ]
    return problem.start, steps, tracking.CUPS


_WORK = {"chain_sums": _sums, "tracking": _swaps}
