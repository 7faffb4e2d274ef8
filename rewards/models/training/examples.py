"""Examples for reward models: pairs of answers, and labelled lines.

Promise: all examples of a prompt are on the same side, learned from or held out, on every machine
and in every process.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, TypeVar

from headrace.data.media import image_bytes
from headrace.errors import UserError
from rewards.models.encoding import Prompt, Tools
from tasks.rows import files_of, images_in, prompt_hash, question_of, with_images

_PARTS = 10_000


@dataclass(frozen=True)
class Demonstration:
    """An answer to learn. `where`, `folder`: as of a `PreferencePair`; `tools`: their schemas.

    `task`: the id of the prompt that the episode of a turn began with."""

    prompt: Prompt
    answer: str
    where: str = ""
    folder: str = ""
    tools: Tools = ()
    task: str = ""


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one prompt, of which `chosen` is the better one.

    Attributes:
        margin: by how much more than `rejected` it should score, in nats of the odds. rule: what
        makes an answer better; None: the recipe's rule. where: file and row, or what else it was
        made of. folder: what paths of images are relative to. cut: whether chosen, rejected met the
        length limit.
    """

    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0
    rule: str | None = None
    where: str = ""
    folder: str = ""
    cut: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class LabelledAnswer:
    """An answer in lines, each with its separator and its label.

    1: all is well so far; 0: neutral; -1: lost; None: nobody said."""

    prompt: Prompt
    lines: tuple[str, ...]
    labels: tuple[float | None, ...]
    where: str = ""


P = TypeVar("P", Demonstration, PreferencePair)


class ExampleImages:
    """Image files of examples, by digest; those with a path are read again each time."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Any, Path]] = {}

    def named(self, pair: P) -> P:
        """Name an example's images by digests; MediaError, with row and image, for a bad one."""
        folder = Path(pair.folder)
        files = files_of(pair.prompt, folder, pair.where, check=True)
        digests = [sha256(data).hexdigest() for data in files]
        for digest, image in zip(digests, images_in(pair.prompt), strict=True):
            self._found.setdefault(digest, (image, folder))
        return replace(pair, prompt=with_images(pair.prompt, digests))

    def read(self, digest: str) -> bytes:
        """An image's file."""
        return image_bytes(*self._found[digest])


E = TypeVar("E", Demonstration, PreferencePair, LabelledAnswer)


@dataclass(frozen=True)
class Examples(Generic[E]):
    """Examples to learn from, and those held out. `ties`: pairs of equal answers, left out."""

    training: list[E]
    held_out: list[E]
    ties: int = 0

    def each(self, change: Callable[[E], E]) -> "Examples[E]":
        """All of them changed."""
        training, held_out = map(change, self.training), map(change, self.held_out)
        return Examples(list(training), list(held_out), self.ties)


def asked(one: Demonstration | PreferencePair | LabelledAnswer) -> Prompt:
    """Return what decides the side of an example: its prompt, of a turn the episode's task."""
    task = one.task if isinstance(one, Demonstration) else ""
    return task or one.prompt


def question(one: Demonstration | PreferencePair | LabelledAnswer) -> str:
    """Return an example's prompt or task as one string, see `tasks.rows.question_of`."""
    return question_of(asked(one), "" if isinstance(one, LabelledAnswer) else one.folder)


def split(examples: Sequence[E], *, fraction: float, ties: int = 0) -> Examples[E]:
    """Hold out this share of prompts, by their hash; UserError for an empty side."""
    bound = round(fraction * _PARTS)
    held = [one for one in examples if prompt_hash(asked(one)) % _PARTS < bound]
    questions = {question(one) for one in held}
    kept = [one for one in examples if question(one) not in questions]
    if not held or not kept:
        raise UserError(
            f"data.eval_fraction = {fraction:g} holds out {len(held)} of {len(examples)} examples; "
            "both sides need some: give more prompts, another share, or data.eval_path"
        )
    return Examples(kept, held, ties)
