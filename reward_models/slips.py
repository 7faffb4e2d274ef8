"""Examples of a procedural task: right answers, and answers with one slip.

In: how many examples, how long the prompts are, a seed. Out: pairs or labelled answers, the same
for the same arguments. A slip is one wrong result in a sum that is worked out term by term; all
that follows goes on from it, so that the answer is wrong in the end, and every line from the slip
on is labelled -1.
"""

from random import Random

from headrace.config.reward_model import TaskDataConfig
from headrace.errors import UserError
from reward_models.examples import Labelled, Pair
from tasks.chain_sums import CHAIN_SUMS, LABELS, read_prompt

SEPARATOR = ";"


def pairs(config: TaskDataConfig, *, seed: int) -> list[Pair]:
    """A right answer and one with a slip to each prompt."""
    made = []
    for index in range(config.examples):
        rng = Random(f"pairs/{config.task}/{seed}/{index}")
        prompt, digits = _prompt(config, rng)
        slip = rng.randrange(len(digits))
        chosen, rejected = _answer(digits), _answer(digits, slip, rng)
        made.append(Pair(prompt, "".join(chosen), "".join(rejected), where=f"example {index}"))
    return made


def labelled(config: TaskDataConfig, *, seed: int) -> list[Labelled]:
    """An answer to each prompt, every other one with a slip."""
    made = []
    for index in range(config.examples):
        rng = Random(f"lines/{config.task}/{seed}/{index}")
        prompt, digits = _prompt(config, rng)
        slip = rng.randrange(len(digits)) if index % 2 else len(digits)
        lines = _answer(digits, slip, rng)
        labels = tuple(1.0 if min(line, len(digits) - 1) < slip else -1.0
                       for line in range(len(lines)))  # fmt: skip
        made.append(Labelled(prompt, tuple(lines), labels, f"example {index}"))
    return made


def _prompt(config: TaskDataConfig, rng: Random) -> tuple[str, list[int]]:
    if not config.min_terms <= config.max_terms <= CHAIN_SUMS.most_terms:
        raise UserError(
            f"data.min_terms = {config.min_terms} and data.max_terms = {config.max_terms}: "
            f"{config.task} needs min_terms <= max_terms <= {CHAIN_SUMS.most_terms}"
        )
    prompt = CHAIN_SUMS.draw(rng, rng.randint(config.min_terms, config.max_terms))
    return prompt, read_prompt(prompt)


def _answer(digits: list[int], slip: int = -1, rng: Random | None = None) -> list[str]:
    """The lines of an answer; the result of step `slip` is wrong where that is one."""
    lines, total = [], 0
    for index, digit in enumerate(digits):
        result = (total + digit) % 10
        if index == slip and rng is not None:
            result = (result + rng.randint(1, 9)) % 10
        lines.append(f"{LABELS[index]}{digit}+{total}={result}{SEPARATOR}")
        total = result
    return [*lines, f"#{total}"]
