"""Source of prompts and answers: a dataset file, generated problems, or a mixture."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from headrace.config.sections.base import StrictModel


class TaskBase(StrictModel):
    """Keys of every task: the length limits that all roles share."""

    max_prompt_length: int = Field(default=512, ge=1)
    """Maximum prompt length in tokens. Longer prompts are skipped, counted and shown."""

    max_response_length: int = Field(default=1024, ge=1)
    """Maximum response length in tokens; a response cut here is `truncated` and scored."""

    max_images: int = Field(default=4, ge=1)
    """Maximum number of images of a prompt; more are an error."""


class ProceduralConfig(TaskBase):
    """Keys of tasks with generated problems: a Pareto law of the problem's size."""

    min_terms: int = Field(default=3, ge=1)
    """Minimum number of terms of a problem."""

    max_terms: int = Field(default=32, ge=1)
    """Maximum number of terms of a problem."""

    tail_exponent: float = Field(default=1.6, gt=0)
    """Exponent of the Pareto law of the number of terms; smaller: heavier tail."""


class ChainSumsConfig(ProceduralConfig):
    """The demonstration task: sums of labelled digits with a Pareto tail of lengths."""

    kind: Literal["chain_sums"]


class TrackingConfig(ProceduralConfig):
    """Tracking an object under swapped cups: one wrong step spoils the answer. A term is a swap."""

    kind: Literal["tracking"]

    max_terms: int = Field(default=24, ge=1)
    """Maximum number of swaps."""


class GraphWalkConfig(ProceduralConfig):
    """Walks to the goal of a small graph: a search whose length the policy decides, with fatal
    steps. A term is a node; `reward.function = "tasks.procedural.graph_walk:score"`."""

    kind: Literal["graph_walk"]

    min_terms: int = Field(default=5, ge=4)
    """Minimum number of nodes, the marsh apart."""

    max_terms: int = Field(default=16, ge=4)
    """Maximum number of nodes, the marsh apart."""


class ShiftRegisterConfig(ProceduralConfig):
    """Steps of a register, written out and checked: long answers whose length the policy decides;
    one unchecked slip is fatal. A term is a step; `reward.function =
    "tasks.procedural.shift_register:score"`."""

    kind: Literal["shift_register"]

    min_terms: int = Field(default=3, ge=1)
    """Minimum number of steps."""

    max_terms: int = Field(default=130, ge=1)
    """Maximum number of steps, of 11 tokens each, 11 more per check."""

    tail_exponent: float = Field(default=1.3, gt=0)
    """Exponent of the Pareto law of the number of steps."""


class StraightLineConfig(ProceduralConfig):
    """Programs without branches, scored by their last register value: the task of process rewards.
    A term is an operation; `reward.function = "tasks.procedural.straight_line:score"`."""

    kind: Literal["straight_line"]

    min_terms: int = Field(default=2, ge=1)
    """Minimum number of operations."""

    max_terms: int = Field(default=8, ge=1, le=9)
    """Maximum number of operations, of 6 tokens each; a comment has 2."""

    tail_exponent: float = Field(default=1.0, gt=0)
    """Exponent of the Pareto law of the number of operations."""


class ProductsConfig(ProceduralConfig):
    """Products that a small model cannot work out: the task of the environment `calculator`. A term
    is a digit of each factor."""

    kind: Literal["products"]

    min_terms: int = Field(default=2, ge=1, le=4)
    """Minimum number of digits of a factor."""

    max_terms: int = Field(default=2, ge=1, le=4)
    """Maximum number of digits of a factor."""


class FirstDigitConfig(ProceduralConfig):
    """Copies of the first of some digits: the task of the environment `pag`. A term is a digit."""

    kind: Literal["first_digit"]

    min_terms: int = Field(default=4, ge=2, le=8)
    """Minimum number of digits."""

    max_terms: int = Field(default=4, ge=2, le=8)
    """Maximum number of digits."""


class HiddenLetterConfig(ProceduralConfig):
    """Numbers that say nothing: the task of the environment `guess`. A term is a digit."""

    kind: Literal["hidden_letter"]

    min_terms: int = Field(default=5, ge=2, le=8)
    """Minimum number of digits."""

    max_terms: int = Field(default=5, ge=2, le=8)
    """Maximum number of digits."""


class RewritingConfig(ProceduralConfig):
    """Search sessions with an ambiguous last query to rewrite: the task of the reward `ranker`. A
    term is a query with its click."""

    kind: Literal["rewriting"]

    min_terms: int = Field(default=2, ge=2, le=4)
    """Minimum number of queries before the last one."""

    max_terms: int = Field(default=3, ge=2, le=4)
    """Maximum number of them."""


UnitInterval = Annotated[float, Field(ge=0, le=1)]


class ShapesConfig(ProceduralConfig):
    """Images of coloured rectangles with a question: `count`, `box red` (`x1,y1,x2,y2` in a grid of
    4 x 4) or `describe` (`bsw rne`: blue in the southwest, red in the northeast). The column
    `question` names it, for `reward.route`. A term is a rectangle."""

    kind: Literal["shapes"]

    min_terms: int = Field(default=4, ge=1, le=4)
    """Lowest bound: an image has 1 to its bound of rectangles, uniformly."""

    max_terms: int = Field(default=4, ge=2, le=4)
    """Highest bound."""

    questions: dict[Literal["count", "box", "describe"], Annotated[float, Field(gt=0)]] = Field(
        default={"count": 0.5, "box": 0.5}, min_length=1
    )
    """Share of each question, up to a factor; one that is not named is not asked."""

    blank: bool = False
    """Show black images: what is answered then is known without looking."""


class BandsConfig(StrictModel):
    """Frequency at which prompts are asked again, by the pass rate of their last answers."""

    edges: tuple[UnitInterval, ...] = (0.2, 0.8)
    """Pass rates between bands, ascending."""

    ask: tuple[UnitInterval, ...] = (1.0, 1.0, 0.1)
    """Probability that a prompt of each band is asked at its turn: one more than edges."""

    def asked(self, rate: float) -> float:
        """The probability of a prompt with this pass rate."""
        return self.ask[bisect_right(self.edges, rate)]


class DatasetConfig(TaskBase):
    """Rows of a JSONL (also .gz), JSON or Parquet file with a prompt and an answer."""

    kind: Literal["dataset"]

    path: str
    """The training file, or a glob of several."""

    eval_path: str | None = None
    """The held-out file. None: `eval_fraction` of the rows of `path`."""

    eval_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of rows held out by the hash of the prompt, without `eval_path`."""

    prompt_key: str | None = None
    """Column of the prompt (a dot reaches into a nested one). None: `prompt` or an alias below."""

    answer_key: str | None = None
    """Column of the answer. None: `answer` or an alias below. "": none, and rewards read none."""

    prompt_template: str | None = None
    """A format string with `{prompt}` around a plain prompt, or a chat's last user message."""

    limit: int | None = Field(default=None, ge=1)
    """Maximum number of rows, from the first on."""

    only: dict[str, str] = Field(default={})
    """Use only rows with these values in these columns, such as `domain = "math"`."""

    image_urls: bool = False
    """Fetch images that rows name by http URLs."""

    bands: BandsConfig | None = None
    """Ask prompts more or less often by the measured pass rate of their last group, or the mean
    reward where nothing says what is right. None: each once in an epoch."""


SingleTask = (
    ChainSumsConfig | TrackingConfig | GraphWalkConfig | ShiftRegisterConfig | StraightLineConfig
    | ProductsConfig | FirstDigitConfig | HiddenLetterConfig | RewritingConfig | ShapesConfig
    | DatasetConfig
)  # fmt: skip
DomainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class MixturePoint(StrictModel):
    """The weights of a mixture at an update."""

    update: int = Field(default=0, ge=0)
    """Updates committed."""

    weights: dict[str, Annotated[float, Field(ge=0)]]
    """Share of the prompts by domain, up to a factor; an unnamed domain gets none."""

    def share(self, name: str) -> float:
        """The share of a domain; 1 in sum."""
        return self.weights.get(name, 0.0) / sum(self.weights.values())


class MixtureConfig(TaskBase):
    """Several tasks, each a domain, whose shares of the prompts follow a schedule over updates
    (arXiv 2503.22230). Length limits are the mixture's. `reward.route.column = "domain"` routes by
    it."""

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
