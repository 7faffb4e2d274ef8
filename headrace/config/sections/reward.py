"""Scoring of finished trajectories: sources of rewards, and the prompts' route."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from headrace.config.sections.base import StrictModel
from headrace.config.sections.model import JudgeConfig
from headrace.config.sections.reward_monitors import AlertConfig, AuditConfig

Adapter = Literal["trl", "verl", "openrlhf", "areal", "verifiers", "slime", "rllm", "plain"]
Kind = Literal[
    "math", "exact", "function", "choice", "text", "instruction", "number", "sql", "gym", "code",
    "judge", "prm", "pairwise", "ranker", "box", "point", "ocr", "bradley_terry",
]  # fmt: skip
Unit = Literal["trajectory", "group", "line"]
SourceName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
DEFAULT_SOURCE = "default"
"""The name of a recipe's only source."""
JUDGES_CONCURRENCY = 32
"""Default number of responses that a child of a judge's source has in flight."""


class WeightedFunction(StrictModel):
    """One of several functions, in `functions`."""

    name: str
    """`package.module:name` or `path/to/file.py:name`."""

    weight: float = 1.0
    """The reward is the weighted sum of the scores."""

    adapter: Adapter | None = None
    """Its convention. None: that of the source."""


class SourceConfig(StrictModel):
    """One of several sources of rewards; `[reward.route]` says which prompts it scores."""

    kind: Kind = "math"
    """Kind of scoring; docs/reward-kinds.md explains each."""

    unit: Unit = "trajectory"
    """Unit that is scored at once: a response, all responses to a prompt, or the complete lines of
    a response (`reward.process`)."""

    options: dict[str, Any] = Field(default={})
    """Options of the kind: docs/reward-kinds.md."""

    function: str | None = None
    """`package.module:name` or `path/to/file.py:name` of `(prompt, completion, answer, **info) ->
    float | dict`, or a function or rubric of TRL, verl, OpenRLHF, AReaL, verifiers, slime or
    rLLM."""

    functions: tuple[WeightedFunction, ...] = ()
    """Functions in the place of `function`. The first that applies says what is right."""

    adapter: Adapter | None = None
    """Calling convention. None: by the arguments' names."""

    answer_marker: str | None = Field(default=None, min_length=1)
    """Text before the final answer (such as `#`); the last counts. None: math-verify finds it."""

    require_finish: bool = True
    """A response without an end token counts as wrong."""

    format: str | None = Field(default=None, min_length=1)
    """Regular expression that a whole response has to match (`.` matches line ends), or it is
    wrong. Not of lines."""

    score_range: tuple[float, float] | None = None
    """[low, high]: these scores become `wrong_reward` and `correct_reward`, those beyond are cut.
    None: a function's score is the reward; other kinds score from 0 to 1."""

    correct_reward: float = 1.0
    """Reward of a right answer; not of functions without `score_range`."""

    wrong_reward: float = 0.0
    """Reward of a wrong answer, and of any response without its end."""

    kl_coefficient: float | None = Field(default=None, ge=0)
    """In the place of `algorithm.kl.coef` for this source's prompts. 0: none."""

    correct_threshold: float = 0.5
    """Score, before `score_range`, from which an answer is right, for functions without `correct`,
    judges and `bradley_terry`."""

    python: str | None = None
    """Python of the scoring children, with numpy, msgspec and pydantic. None: ours."""

    children: int = Field(default=1, ge=1)
    """Scoring child processes per worker."""

    concurrency: int | None = Field(default=None, ge=1)
    """Responses or groups scored at once per child: judges (None: 32), coroutines (None: 1)."""

    timeout_s: float = Field(default=10.0, gt=0)
    """Deadline of one response. A late child is replaced; one that scores many gives the response
    up."""

    @field_validator("format")
    @classmethod
    def _is_expression(cls, format: str | None) -> str | None:
        try:
            re.compile(format or "")
        except re.error as error:
            raise ValueError(f"no regular expression: {error}") from error
        return format

    def pays_itself(self) -> bool:
        """Return whether its scores are rewards as they are."""
        return self.kind == "function" and self.score_range is None

    def names(self) -> tuple[str, ...]:
        """Names of the functions."""
        own = () if self.function is None else (self.function,)
        return (*own, *(entry.name for entry in self.functions))


class RouteConfig(StrictModel):
    """Route of a prompt to a source: by column, else by task, else the default."""

    column: str | None = None
    """Column of the dataset (a dot reaches into a nested one)."""

    values: dict[str, SourceName] = Field(default={})
    """Source by the column's value. Empty: the value is the source."""

    tasks: dict[str, SourceName] = Field(default={})
    """Source by `task.kind`."""

    default: SourceName | None = None
    """Source of all other prompts. None: there may be none."""

    def targets(self) -> tuple[str, ...]:
        """Every source that it names."""
        last = () if self.default is None else (self.default,)
        return (*self.values.values(), *self.tasks.values(), *last)


class ProcessConfig(StrictModel):
    """Rewards for lines besides the outcome: lambda x score / the number of lines that are not
    neutral (arXiv 2410.17621)."""

    source: SourceName | None = None
    """The source that scores lines. None: lines earn nothing."""

    failing: float = Field(default=0.25, ge=0)
    """lambda of an answer that is not right."""

    passing: float = Field(default=0.025, ge=0)
    """lambda of one that is right."""

    lines: int | None = Field(default=None, ge=1)
    """Expected non-neutral lines, the divisor while an answer goes on (or the lines so far, if
    more). None: the mean of the last answers."""


class RewardConfig(SourceConfig):
    """Sources that score responses. With `[reward.sources.NAME]` the keys of a source stand in
    their tables; without, these are the only source, `default`."""

    sources: dict[SourceName, SourceConfig] = Field(default={})
    """Sources by name."""

    route: RouteConfig = RouteConfig()
    """Route of prompts to sources."""

    judges: dict[SourceName, JudgeConfig] = Field(default={})
    """Models of our own that judge, by name. docs/reward-kinds.md."""

    audit: AuditConfig | None = None
    """A second source that scores a share of the prompts too, to see whether rewards still mean
    what they should. None: nobody does."""

    alerts: AlertConfig = AlertConfig()
    """Alerts of the reward monitors."""

    process: ProcessConfig = ProcessConfig()
    """Rewards of lines beside the outcome."""

    token_ids: bool = False
    """Send token ids to the reward workers; on where a function takes them."""

    workers: int = Field(default=1, ge=1)
    """Reward worker processes the supervisor starts."""

    batch: int = Field(default=64, ge=1)
    """Maximum number of responses handed to a child at once."""

    max_consecutive_failures: int = Field(default=64, ge=1)
    """Failed scorings of a source, or failed episodes, in a row that stop the run."""

    def each(self) -> dict[str, SourceConfig]:
        """All sources by name."""
        if self.sources:
            return self.sources
        own = {name: getattr(self, name) for name in SourceConfig.model_fields}
        return {DEFAULT_SOURCE: SourceConfig(**own)}

    def ranker(self) -> SourceConfig | None:
        """The source whose ranker may be trained along, where there is one."""
        return next((s for s in self.each().values() if s.kind == "ranker"), None)

    def line_source(self) -> SourceConfig | None:
        """The source that scores lines, where there is one."""
        name = self.process.source
        return None if name is None else self.each().get(name)

    def strays(self) -> list[str]:
        """Return keys of a source beside `sources`, which would be ignored."""
        if not self.sources:
            return []
        fields = SourceConfig.model_fields.items()
        return [name for name, field in fields if getattr(self, name) != field.default]

    def audit_only(self) -> frozenset[str]:
        """Sources that score for the audit and for no prompt's training."""
        if self.audit is None or self.audit.source in self.route.targets():
            return frozenset()
        by_name = self.route.column is not None and not self.route.values
        return frozenset() if by_name else frozenset({self.audit.source})

    def audit_judges(self) -> frozenset[str]:
        """Return judges of the run that only auditing sources use."""
        audits, asked = self.audit_only(), {True: set[str](), False: set[str]()}
        for name, source in self.each().items():
            judge = source.options.get("judge") if source.kind == "judge" else None
            if isinstance(judge, str):
                asked[name in audits].add(judge)
        return frozenset(asked[True] - asked[False])

    def route_of(self, task: str, columns: Callable[[], Mapping[str, Any]]) -> str | None:
        """The name of the source for a prompt of a task; None where there is none. The row's
        columns are asked for only where the route goes by one."""
        if not self.sources:
            return DEFAULT_SOURCE
        route = self.route
        found = None if route.column is None else _value(columns(), route.column)
        if found is not None:
            named = route.values.get(found) if route.values else found
            if named in self.sources and self.sources[named].unit != "line":
                return named
        return route.tasks.get(task, route.default)


def _value(columns: Mapping[str, Any], dotted: str) -> str | None:
    """Return a row's value under a name, as text; None where it has none."""
    value: Any = columns.get(dotted)
    if dotted not in columns:
        value = columns
        for part in dotted.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
