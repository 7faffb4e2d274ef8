"""Procedural tasks, and the prompt rows that all of them make the same way.

In: a task's few functions (how a prompt of a given size is drawn, what its answer is, how answers
are written). Out: training rows addressed by position and a fixed list of evaluation rows, both
pure functions of their arguments.

The size of a prompt, its number of terms, follows a Pareto law, so that a few prompts need very
long answers. A prompt is held out when the hash of its text says so: training never yields it,
evaluation yields no other. By default a right answer ends in `#` and the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from headrace.errors import UserError
from tasks.rows import Message, TaskRow, prompt_hash

EOS = "<eos>"
"""The end token of their tokenizers (`character_tokenizer`)."""
HELD_OUT_SHARE = 8
"""One prompt in this many is held out."""

Split = Literal["train", "eval"]
Phase = Literal["skill", "mixture"]
"""Phases of the cold start: only careful answers, then all ways of answering, mixed."""


def is_correct(response: str, answer: str) -> bool:
    """Return whether a response that ended by itself closes with `#answer`."""
    return response.endswith(f"#{answer}")


def is_answer(row: TaskRow, response: str) -> bool:
    """Return whether a response is the row's answer and nothing else."""
    return response == row.answer


@dataclass(frozen=True, slots=True)
class ProceduralTask:
    """A task whose prompts are made from a random generator and a number of terms."""

    name: str
    """As `task.kind` of the configuration says."""

    characters: str
    """All characters of its prompts and answers, in the order of the tokenizer."""

    most_terms: int
    """Maximum number of terms that a prompt can have: one label each."""

    max_terms: int
    """Default of a prompt's maximum number of terms."""

    styles: tuple[str, ...]
    """Styles that `style_of` distinguishes besides `other`, most careful last."""

    draw: Callable[[Random, int], str]
    """A prompt with that many terms."""

    solve: Callable[[str], str]
    """The answer to a prompt. Raises ValueError for a text that is none."""

    teach: Callable[[str, Random, Phase], str]
    """The supervised model's answer to a prompt, without the end token."""

    style_of: Callable[[str], str]
    """The one of `styles` that a response is written in; `other` when none."""

    is_right: Callable[[TaskRow, str], bool] = lambda row, text: is_correct(text, row.answer)
    """True if a response that ended by itself is right, as the task's reward says."""

    min_terms: int = 3
    """Default of a prompt's minimum number of terms."""

    tail_exponent: float = 1.6
    """Default exponent of the Pareto law of the number of terms."""

    columns: Callable[[str], dict[str, Any]] = lambda prompt: {}
    """Columns of a prompt's row for reward functions besides its terms."""

    show: Callable[[str], str | list[Message]] = lambda prompt: prompt
    """The prompt as the policy sees it, which may be an image of what was drawn."""


@dataclass(frozen=True, slots=True)
class PromptSizes:
    """Law of the number of terms: floor(min_terms * u^(-1/tail)), at most `max_terms`."""

    min_terms: int
    max_terms: int
    tail: float

    def draw(self, rng: Random) -> int:
        u = 1.0 - rng.random()
        return int(min(self.max_terms, self.min_terms * u ** (-1.0 / self.tail)))


def default_sizes(task: ProceduralTask) -> PromptSizes:
    """The sizes a task has when the configuration says nothing."""
    return PromptSizes(task.min_terms, task.max_terms, task.tail_exponent)


def is_held_out(prompt: str) -> bool:
    """Return whether the prompt belongs to evaluation, by the hash of its text."""
    return prompt_hash(prompt) % HELD_OUT_SHARE == 0


def draw_prompt(task: ProceduralTask, rng: Random, terms: int) -> str:
    """A prompt of the training side with that many terms."""
    while is_held_out(prompt := task.draw(rng, terms)):
        pass
    return prompt


def prompt_row(
    task: ProceduralTask,
    index: int,
    seed: int,
    *,
    sizes: PromptSizes | None = None,
    split: Split = "train",
) -> TaskRow:
    """The row at `index` of an endless stream; the same arguments always give the same row.

    Draws that fall on the other side of the hash split are drawn again, size and all, so the law
    of the lengths holds on both sides.
    """
    sizes = sizes or default_sizes(task)
    rng = Random(f"{task.name.replace('_', '-')}/{split}/{seed}/{index}")
    while True:
        terms = sizes.draw(rng)
        prompt = task.draw(rng, terms)
        if is_held_out(prompt) == (split == "eval"):
            info = {"terms": terms, **task.columns(prompt)}
            return TaskRow(f"{split}-{index}", task.show(prompt), task.solve(prompt), info)


def evaluation_rows(
    task: ProceduralTask, count: int, *, sizes: PromptSizes | None = None
) -> list[TaskRow]:
    """`count` distinct held-out rows, the same for every run, whatever its seed.

    Short prompts are few (729 chains of three sums, about 90 of them held out). A prompt that was
    already taken is drawn again with a new size, so a large evaluation set holds fewer of the
    shortest prompts than the training stream and is slightly harder. UserError when the settings
    do not allow that many distinct prompts.
    """
    sizes = sizes or default_sizes(task)
    rows: list[TaskRow] = []
    seen: set[str] = set()
    index = 0
    while len(rows) < count:
        if index >= 1000 + 50 * count:
            raise UserError(
                f"{task.name} has only about {len(rows)} distinct held-out prompts with "
                f"min_terms={sizes.min_terms}, max_terms={sizes.max_terms}, but {count} were "
                "asked for: raise max_terms or evaluate on fewer prompts"
            )
        row = prompt_row(task, index, 0, sizes=sizes, split="eval")
        index += 1
        if str(row.prompt) not in seen:
            seen.add(str(row.prompt))
            rows.append(row)
    return rows
