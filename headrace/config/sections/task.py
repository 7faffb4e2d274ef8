"""Where prompts and answers come from: a dataset file or a generator of problems."""

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class TaskBase(StrictModel):
    """What every task has: the length limits that all roles share."""

    max_prompt_length: int = Field(default=512, ge=1)
    """Longest prompt in tokens. Longer prompts are skipped, counted and shown."""

    max_response_length: int = Field(default=1024, ge=1)
    """Longest response in tokens; a response cut here is `truncated` and scored as it is."""


class ProceduralConfig(TaskBase):
    """What tasks have whose problems are made, not read: a Pareto law of the problem's size."""

    min_terms: int = Field(default=3, ge=1)
    """Fewest terms of a problem."""

    max_terms: int = Field(default=32, ge=1)
    """Most terms of a problem."""

    tail_exponent: float = Field(default=1.6, gt=0)
    """Exponent of the Pareto law of the number of terms; smaller is a heavier tail."""


class ChainSumsConfig(ProceduralConfig):
    """Procedural sums of labelled digits with a Pareto tail of lengths: the demonstration task."""

    kind: Literal["chain_sums"]


class TrackingConfig(ProceduralConfig):
    """Procedural tracking of an object under swapped cups: one wrong step spoils the answer, so
    credit assignment inside it matters. A term is a swap."""

    kind: Literal["tracking"]

    max_terms: int = Field(default=24, ge=1)
    """Most swaps of a problem."""


class GraphWalkConfig(ProceduralConfig):
    """Procedural walks to the goal of a small graph: a search, whose length the policy decides, and
    in which one step may be fatal. A term is a node; `reward.function =
    "tasks.procedural.graph_walk:score"`.
    """

    kind: Literal["graph_walk"]

    min_terms: int = Field(default=5, ge=4)
    """Fewest nodes of a graph, the marsh apart."""

    max_terms: int = Field(default=16, ge=4)
    """Most nodes of a graph, the marsh apart."""


class ShiftRegisterConfig(ProceduralConfig):
    """Procedural steps of a small register, written out and checked: long answers whose length the
    policy decides, and in which one unchecked slip is fatal. A term is a step;
    `reward.function = "tasks.procedural.shift_register:score"`."""

    kind: Literal["shift_register"]

    min_terms: int = Field(default=3, ge=1)
    """Fewest steps of a problem."""

    max_terms: int = Field(default=130, ge=1)
    """Most steps of a problem; each takes 11 tokens, and 11 more whenever it is checked."""

    tail_exponent: float = Field(default=1.3, gt=0)
    """Exponent of the Pareto law of the number of steps; smaller is a heavier tail."""


class StraightLineConfig(ProceduralConfig):
    """Procedural programs without branches, one register value a line, of which the reward looks at
    the last alone: the task of process rewards. A term is an operation; `reward.function =
    "tasks.procedural.straight_line:score"`."""

    kind: Literal["straight_line"]

    min_terms: int = Field(default=2, ge=1)
    """Fewest operations of a program."""

    max_terms: int = Field(default=8, ge=1, le=9)
    """Most operations of a program; each takes 6 tokens, and a comment 2."""

    tail_exponent: float = Field(default=1.0, gt=0)
    """Exponent of the Pareto law of the number of operations; smaller is a heavier tail."""


class DatasetConfig(TaskBase):
    """Rows of a JSONL (also .gz), JSON or Parquet file with a prompt and an answer."""

    kind: Literal["dataset"]

    path: str
    """The training file."""

    eval_path: str | None = None
    """The held-out file. None: `eval_fraction` of the rows of `path` is held out by hash."""

    eval_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of rows held out by the hash of the prompt where there is no `eval_path`."""

    prompt_key: str | None = None
    """Column of the prompt. None: `prompt` or an alias (listed further down)."""

    answer_key: str | None = None
    """Column of the answer. None: `answer` or an alias (listed further down)."""

    prompt_template: str | None = None
    """A format string with `{prompt}` that wraps every prompt of plain text."""

    limit: int | None = Field(default=None, ge=1)
    """Use the first so many rows only."""


TaskConfig = Annotated[
    ChainSumsConfig
    | TrackingConfig
    | GraphWalkConfig
    | ShiftRegisterConfig
    | StraightLineConfig
    | DatasetConfig,
    Field(discriminator="kind"),
]
