"""Prompt sources: an endless training stream addressed by position, and a fixed evaluation set.

In: the task's configuration and the run's seed. Out: a `MixtureSource`. A position alone says which
row comes next, so a run resumes from one integer. Evaluation rows do not depend on the seed: runs
with different seeds are compared on the same prompts, none of which training ever yields.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from random import Random

from headrace.config.sections.task import DatasetConfig, TaskConfig, members
from headrace.errors import UserError
from tasks.datasets.dataset_files import read_dataset
from tasks.procedural.base import ProceduralTask, PromptSizes, evaluation_rows, prompt_row
from tasks.procedural.chain_sums import CHAIN_SUMS
from tasks.procedural.graph_walk import GRAPH_WALK
from tasks.procedural.search_world import REWRITING
from tasks.procedural.shapes import SHAPES, asking
from tasks.procedural.shift_register import SHIFT_REGISTER
from tasks.procedural.straight_line import STRAIGHT_LINE
from tasks.procedural.tracking import TRACKING
from tasks.procedural.turn_tasks import FIRST_DIGIT, HIDDEN_LETTER, PRODUCTS
from tasks.rows import TaskRow, files_of, prompt_hash, question_of

PROCEDURAL_TASKS = {
    task.name: task
    for task in (
        CHAIN_SUMS,
        TRACKING,
        GRAPH_WALK,
        SHIFT_REGISTER,
        STRAIGHT_LINE,
        PRODUCTS,
        FIRST_DIGIT,
        HIDDEN_LETTER,
        REWRITING,
        SHAPES,
    )
}


MAX_GENERATED = 1_000_000
"""Number of problems generated at a time."""


class ProceduralSource:
    """Prompts of a domain, made on the fly; see `tasks.procedural.base`."""

    def __init__(self, task: ProceduralTask, sizes: PromptSizes, *, seed: int, domain: str) -> None:
        if not sizes.min_terms <= sizes.max_terms or not 2 <= sizes.max_terms <= task.most_terms:
            raise UserError(
                f"task.min_terms {sizes.min_terms} and task.max_terms {sizes.max_terms}: "
                f"{task.name} needs min_terms <= max_terms and max_terms from 2 to "
                f"{task.most_terms}"
            )
        self._task, self._sizes, self._seed, self._domain = task, sizes, seed, domain

    def row_at(self, position: int) -> TaskRow:
        row = prompt_row(self._task, position, self._seed, sizes=self._sizes)
        return in_domain(self._domain, row)

    def eval_rows(self, count: int) -> list[TaskRow]:
        rows = evaluation_rows(self._task, count, sizes=self._sizes)
        return [in_domain(self._domain, row) for row in rows]

    def training_rows(self, count: int) -> list[TaskRow]:
        if count > MAX_GENERATED:
            raise UserError(
                f"the prompts of {self._task.name} are made, and there is no end of them: say how "
                "many with --prompts N"
            )
        return [self.row_at(position) for position in range(count)]


class DatasetSource:
    """Rows of a file, shuffled in every epoch by the seed and the epoch's number."""

    def __init__(self, training: list[TaskRow], evaluation: list[TaskRow], *, seed: int) -> None:
        if not training:
            raise UserError(
                "no training rows are left beside the held-out ones: lower task.eval_fraction, "
                "or give a task.eval_path with other prompts"
            )
        seen = Counter[str]()
        self.training = _with_own_ids(training, seen)
        held_out = _with_own_ids(evaluation, seen)
        by_hash = sorted(held_out, key=lambda row: (prompt_hash(row.prompt), row.id))
        alike = groupby(by_hash, key=lambda row: prompt_hash(row.prompt))
        # A file may repeat its prompts; each comes once before one comes again.
        self.evaluation = _in_turn([list(copies) for _, copies in alike], len(by_hash))
        self._seed = seed
        # Two epochs are live at once when positions near a border are asked for again.
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self.training)))
        Random(f"dataset/{self._seed}/{epoch}").shuffle(order)
        return order

    def row_at(self, position: int) -> TaskRow:
        epoch, offset = divmod(position, len(self.training))
        return self.training[self._order(epoch)[offset]]

    def eval_rows(self, count: int) -> list[TaskRow]:
        return self.evaluation[:count]

    def training_rows(self, count: int) -> list[TaskRow]:
        return self.training[:count]


def _with_own_ids(rows: list[TaskRow], seen: Counter[str]) -> list[TaskRow]:
    """The rows; an id that was `seen` gets a number: files may share names, or ids."""
    found = []
    for row in rows:
        name = row.id
        while seen[name]:
            seen[row.id] += 1
            name = f"{row.id}#{seen[row.id]}"
        seen[name] += 1
        found.append(row if name == row.id else replace(row, id=name))
    return found


class MixtureSource:
    """The rows of a task's sources in turn, each of a domain; of one alone it has no name."""

    def __init__(self, domains: Mapping[str, ProceduralSource | DatasetSource]) -> None:
        self.domains = domains

    def row_at(self, position: int) -> TaskRow:
        """The training row at `position` >= 0 of the endless stream."""
        place, turn = divmod(position, len(self.domains))
        return list(self.domains.values())[turn].row_at(place)

    def eval_rows(self, count: int) -> list[TaskRow]:
        """`count` held-out rows, or all there are when a dataset has fewer."""
        return _in_turn([domain.eval_rows(count) for domain in self.domains.values()], count)

    def training_rows(self, count: int) -> list[TaskRow]:
        """The first `count` training rows, each once, or all that a dataset has."""
        return _in_turn([domain.training_rows(count) for domain in self.domains.values()], count)


def in_domain(domain: str, row: TaskRow) -> TaskRow:
    """A row as one of a domain of a mixture, as it is where that has no name."""
    if not domain:
        return row
    info = row.info | {"domain": domain}
    return replace(row, id=f"{domain}/{row.id}", info=info, domain=domain)


def _in_turn(lists: list[list[TaskRow]], count: int) -> list[TaskRow]:
    numbered = [each for rows in lists for each in enumerate(rows)]
    return [row for _, row in sorted(numbered, key=lambda each: each[0])][:count]


def split_by_hash(rows: list[TaskRow], fraction: float) -> tuple[list[TaskRow], list[TaskRow]]:
    """(training, held out), by the hash of the prompt, so that equal prompts stay together."""
    bound = int(fraction * 2**64)
    training = [row for row in rows if prompt_hash(row.prompt) >= bound]
    return training, [row for row in rows if prompt_hash(row.prompt) < bound]


def _split(domain: str, task: DatasetConfig) -> tuple[list[TaskRow], list[TaskRow]]:
    """(rows for training, held out) of a dataset's files; some prompts may be in both."""
    rows = _read(domain, task, task.path, task.limit)
    if task.eval_path is None:
        return split_by_hash(rows, task.eval_fraction)
    return rows, _read(domain, task, task.eval_path, None)


def _question(row: TaskRow) -> str:
    """A row's question, without its template."""
    return question_of(row.prompt if row.plain is None else row.plain, row.folder)


def _read(domain: str, task: DatasetConfig, path: str, limit: int | None) -> list[TaskRow]:
    rows = read_dataset(
        path,
        prompt_key=task.prompt_key,
        answer_key=task.answer_key,
        prompt_template=task.prompt_template,
        limit=None if task.only else limit,
    )
    wanted = task.only.items()
    chosen = [row for row in rows if all(str(row.info.get(key)) == value for key, value in wanted)]
    if not chosen:
        raise UserError(f"no row of {path} has " + " and ".join(f"{k} = {v}" for k, v in wanted))
    return [in_domain(domain, row) for row in chosen[:limit]]


def info_columns(task: TaskConfig) -> frozenset[str]:
    """Columns beside prompt and answer, for reward functions: those in the first row of every
    file."""
    firsts = (frozenset(table[0].info) for table in _tables(task, first=True))
    return frozenset.intersection(*firsts)


def every_row(task: TaskConfig) -> Iterator[TaskRow]:
    """All rows of a dataset, held out or not; the first prompt of a procedural task."""
    return (row for table in _tables(task, first=False) for row in table)


def _tables(task: TaskConfig, *, first: bool) -> Iterator[list[TaskRow]]:
    """The rows of each file, or the first one alone."""
    for domain, member in members(task).items():
        if member.kind != "dataset":
            yield [in_domain(domain, build_source(member, seed=0).row_at(0))]
            continue
        for path, limit in ((member.path, member.limit), (member.eval_path, None)):
            if path is not None:
                yield _read(domain, member, path, 1 if first else limit)


def build_source(task: TaskConfig, seed: int) -> MixtureSource:
    """The source of a task's configuration; no member trains what one of them holds out.
    UserError: its data cannot be used."""
    found = {name: _split(name, t) for name, t in members(task).items() if t.kind == "dataset"}
    held_out = {_question(row) for _, rows in found.values() for row in rows}
    sources: dict[str, ProceduralSource | DatasetSource] = {}
    for name, member in members(task).items():
        if member.kind == "dataset":
            training = [row for row in found[name][0] if _question(row) not in held_out]
            sources[name] = DatasetSource(training, found[name][1], seed=seed)
            continue
        made = PROCEDURAL_TASKS[member.kind]
        if member.kind == "shapes":
            made = asking(member.questions, blank=member.blank)
        sizes = PromptSizes(member.min_terms, member.max_terms, member.tail_exponent)
        sources[name] = ProceduralSource(made, sizes, seed=seed, domain=name)
    return MixtureSource(sources)


def image_files(task: TaskConfig, row: TaskRow, *, check: bool = False) -> list[bytes]:
    """The image files of a row's prompt, in order. MediaError, which names row and image: one is
    missing or, with `check`, unusable."""
    member = members(task)[row.domain]
    urls = member.kind == "dataset" and member.image_urls
    return files_of(row.prompt, Path(row.folder), f"row {row.id}", urls=urls, check=check)
