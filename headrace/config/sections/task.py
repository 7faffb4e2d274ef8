"""Where prompts and answers come from: a dataset file, a generator of problems, or a mixture."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class TaskBase(StrictModel):
    """What every task has: the length limits that all roles share."""

    max_prompt_length: int = Field(default=512, ge=1)
    """Longest prompt in tokens. Longer prompts are skipped, counted and shown."""

    max_response_length: int = Field(default=1024, ge=1)
    """Longest response in tokens; a response cut here is `truncated` and scored as it is."""

    max_images: int = Field(default=4, ge=1)
    """Most images of a prompt; a prompt with more is an error."""


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


class ProductsConfig(ProceduralConfig):
    """Procedural products of two numbers, which a small model cannot work out: the task of the
    environment `calculator`. A term is a digit of each factor."""

    kind: Literal["products"]

    min_terms: int = Field(default=2, ge=1, le=4)
    """Fewest digits of a factor."""

    max_terms: int = Field(default=2, ge=1, le=4)
    """Most digits of a factor."""


class FirstDigitConfig(ProceduralConfig):
    """Procedural copies of the first of some digits: the task of the environment `pag`. A term is a
    digit."""

    kind: Literal["first_digit"]

    min_terms: int = Field(default=4, ge=2, le=8)
    """Fewest digits."""

    max_terms: int = Field(default=4, ge=2, le=8)
    """Most digits."""


class HiddenLetterConfig(ProceduralConfig):
    """Procedural numbers that say nothing: the task of the environment `guess`. A term is a
    digit."""

    kind: Literal["hidden_letter"]

    min_terms: int = Field(default=5, ge=2, le=8)
    """Fewest digits."""

    max_terms: int = Field(default=5, ge=2, le=8)
    """Most digits."""


class RewritingConfig(ProceduralConfig):
    """Procedural search sessions whose last query could mean three topics, to be written anew: the
    task of the reward `ranker`. A term is a query with its click."""

    kind: Literal["rewriting"]

    min_terms: int = Field(default=2, ge=2, le=4)
    """Fewest queries with a click before the last one."""

    max_terms: int = Field(default=3, ge=2, le=4)
    """Most of them."""


Share = Annotated[float, Field(ge=0, le=1)]


class ShapesConfig(ProceduralConfig):
    """Procedural images of coloured rectangles with a question, for vision-language policies:
    `count` (how many are there), `box red` (where is it: `x1,y1,x2,y2` in cells of a grid of
    4 x 4) or `describe` (`bsw rne`: a blue one in the southwest, a red one in the northeast). The
    column `question` says which, for `reward.route`. A term is a rectangle."""

    kind: Literal["shapes"]

    min_terms: int = Field(default=4, ge=1, le=4)
    """Lowest bound: an image has from 1 to its bound of rectangles, all numbers alike."""

    max_terms: int = Field(default=4, ge=2, le=4)
    """Highest bound: the most rectangles of an image."""

    questions: dict[Literal["count", "box", "describe"], Annotated[float, Field(gt=0)]] = Field(
        default={"count": 0.5, "box": 0.5}, min_length=1
    )
    """Share of each question, up to a factor; one that is not named is not asked."""

    blank: bool = False
    """Show black images: what is answered then is known without looking."""


class BandsConfig(StrictModel):
    """How often prompts are asked again, by what their last answers got."""

    edges: tuple[Share, ...] = (0.2, 0.8)
    """Pass rates at which a band ends and the next one begins; ascending."""

    ask: tuple[Share, ...] = (1.0, 1.0, 0.1)
    """Probability that a prompt of each band is asked when its turn comes: one more than edges."""

    def asked(self, rate: float) -> float:
        """The probability of a prompt with this pass rate."""
        return self.ask[bisect_right(self.edges, rate)]


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

    only: dict[str, str] = Field(default={})
    """Use the rows only that have these values in these columns, such as `domain = "math"`."""

    image_urls: bool = False
    """Fetch images that rows name by http URLs."""

    bands: BandsConfig | None = None
    """Ask prompts more or less often by the measured pass rate of their last group, or the mean
    reward where nothing says what is right. None: each once in an epoch."""


SingleTask = (
    ChainSumsConfig
    | TrackingConfig
    | GraphWalkConfig
    | ShiftRegisterConfig
    | StraightLineConfig
    | ProductsConfig
    | FirstDigitConfig
    | HiddenLetterConfig
    | RewritingConfig
    | ShapesConfig
    | DatasetConfig
)


DomainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class MixturePoint(StrictModel):
    """The weights of a mixture at an update."""

    update: int = Field(default=0, ge=0)
    """Updates committed."""

    weights: dict[str, Annotated[float, Field(ge=0)]]
    """Share of the prompts by domain, up to a factor; a domain that is not named gets none."""

    def share(self, name: str) -> float:
        """The share of a domain; 1 in sum."""
        return self.weights.get(name, 0.0) / sum(self.weights.values())


class MixtureConfig(TaskBase):
    """Several tasks at a time, each a domain: their shares of the prompts follow a schedule over
    updates, such as mathematics and code first (Data scaling, arXiv 2503.22230). The length limits
    are those of the mixture. `reward.route.column = "domain"` routes by it."""

    kind: Literal["mixture"]

    datasets: dict[DomainName, Annotated[SingleTask, Field(discriminator="kind")]] = Field(
        min_length=1
    )
    """The tasks, by the name of the domain."""

    schedule: tuple[MixturePoint, ...] = ()
    """Weights at some updates; between two of them they change linearly, after the last one they
    stay. Empty: all alike."""

    def weights(self, update: int) -> dict[str, float]:
        """The share of each domain at an update; 1 in sum."""
        points = self.schedule or (MixturePoint(weights=dict.fromkeys(self.datasets, 1.0)),)
        passed = bisect_right([point.update for point in points], update)
        before, after = points[max(passed - 1, 0)], points[min(passed, len(points) - 1)]
        part = (update - before.update) / max(1, after.update - before.update)
        return {
            name: (1 - part) * before.share(name) + part * after.share(name)
            for name in self.datasets
        }


TaskConfig = Annotated[SingleTask | MixtureConfig, Field(discriminator="kind")]


def members(task: TaskConfig) -> Mapping[str, SingleTask]:
    """The tasks that a task is made of, by domain; the domain of one alone is ""."""
    return task.datasets if isinstance(task, MixtureConfig) else {"": task}
