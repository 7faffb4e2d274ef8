"""A study as data: a TOML file of arms, overrides and seeds in `benchmarks/studies`.

In: a file, and the name of one of its settings where it has several. Out: `StudyFile`; any mistake
is a `UserError` of one line. What the keys mean is said here, once.

Two kinds of strings are more than text. An override may hold `{formula}`s, which are filled from
the study's variables and from the point at which an arm stands; `@NAME` stands for the overrides of
`lists.NAME`. Columns and plots say by formulas what they take of a row
(`benchmarks.kit.study_table`). Formulas are Python expressions without builtins: a study is run by
who wrote it, as code is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from headrace.config.loading.recipe import deep_merge, read_toml, validated
from headrace.errors import UserError
from headrace.host.install import ROOT

FOLDER = ROOT / "benchmarks" / "studies"
FORMULA = re.compile(r"\{([^{}]*)\}")
Number = int | float
Point = Mapping[str, Number]
"""Where an arm stands in its grid: a value for each coordinate; formulas name them."""


class _StudyTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Grid(_StudyTable):
    """Where tuning begins, and what it tries of each coordinate, one after the other."""

    start: dict[str, Number]
    alternatives: dict[str, tuple[Number, ...]]

    @property
    def budget(self) -> int:
        """Points that tuning runs."""
        return 1 + sum(map(len, self.alternatives.values()))


class ArmTable(_StudyTable):
    """An arm: what it changes of the study's `overrides`, its recipe where it is another, and the
    name of its grid where it is tuned."""

    overrides: tuple[str, ...] = ()
    recipe: str | None = None
    grid: str | None = None


class ReducedStudy(_StudyTable):
    """What `--reduced` leaves: these arms, this number of seeds."""

    arms: tuple[str, ...]
    seeds: int


class StudyColumn(_StudyTable):
    """A column that the table has besides: its title, a formula of a run's figure, and how it is
    written."""

    title: str
    figure: str
    form: str


class Panel(_StudyTable):
    """Axes of a plot, one of three: `dots` (a figure, one line per arm), `x` and `y` (a curve per
    arm), or `y` over a sweep: by its label the arm at each x."""

    dots: str | None = None
    x: str | None = None
    y: str | None = None
    sweep: dict[str, dict[str, str]] = {}
    arms: tuple[str, ...] | None = None
    xlabel: str
    ylabel: str = ""
    level: float | None = None
    """Where a horizontal line is."""


class Plot(_StudyTable):
    """A plot of the study, a file of its own."""

    file: str
    caption: str
    size: tuple[Number, Number] | None = None
    panels: tuple[Panel, ...]


class Preparation(_StudyTable):
    """What runs need that is not checked in: the file or model folder that a module of ours
    makes."""

    makes: str
    module: str
    arguments: tuple[str, ...]


class TuningTable(_StudyTable):
    """On which seeds arms are tuned, up to which accuracy, and what only these runs have."""

    seeds: tuple[int, ...]
    target: float | None = None
    overrides: tuple[str, ...] = ()


class Variant(_StudyTable):
    """An arm of a part: the arm `of` at its best point, or where tuning begins (`start`), with
    other coordinates (formulas of its own ones) and overrides. `against`: what it is compared with,
    an arm of the part as `OF, NAME`; `own_target`: the target is that arm's, the task being
    another."""

    name: str
    of: str
    start: bool = False
    point: dict[str, str] = {}
    overrides: tuple[str, ...] = ()
    against: str | None = None
    own_target: bool = False


class StudyPart(_StudyTable):
    """What is run besides, by an option of its own; `tuned`: as runs of tuning are. `overrides` and
    `against` are those of all its arms."""

    about: str
    title: str | None = None
    """Over its arms, where they are of one arm."""
    seeds: tuple[int, ...]
    tuned: bool = False
    overrides: tuple[str, ...] = ()
    against: str | None = None
    arms: tuple[Variant, ...]


class Race(_StudyTable):
    """The target is a share of the median of what the study's reference ends with; other shares are
    reported, too. `ratio`: the arm whose seconds the reference's are divided by. `quotients`: by
    name, two arms and what the quotient of their seconds is, in words."""

    share: float
    other_shares: tuple[float, ...] = ()
    ratio: str
    quotients: dict[str, tuple[str, str, str]] = {}


class StudyFile(_StudyTable):
    """What a file says of a study."""

    recipe: str = ""
    seeds: tuple[int, ...] = ()
    reference: str = ""
    """The arm that the others are compared with, seed by seed."""
    jobs: int | None = None
    """Runs at a time. None: one a core."""
    drawn: bool = False
    """The order of the arms is drawn for every two seeds."""
    variables: dict[str, Number | str] = {}
    lists: dict[str, tuple[str, ...]] = {}
    overrides: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    """Overrides of all runs but those of tuning."""
    arms: dict[str, ArmTable] = {}
    reduced: ReducedStudy | None = None
    prepare: tuple[Preparation, ...] = ()
    facts: str | None = None
    """`module:function`: what else a row keeps of a run, from its folder."""
    columns: tuple[StudyColumn, ...] = ()
    plots: tuple[Plot, ...] = ()
    grids: dict[str, Grid] = {}
    tuning: TuningTable | None = None
    race: Race | None = None
    parts: dict[str, StudyPart] = {}
    ceiling: str | None = None
    """The arm, a stream, whose generator and learner were measured alone."""
    retired: str | None = None
    """The commit that has the code of a study that nobody runs any more."""
    now: str | None = None
    """What a retired one is called now, options included."""

    def expanded(self, overrides: Sequence[str]) -> Iterator[str]:
        """Overrides with the named lists in their places. UserError for an unknown name."""
        for one in overrides:
            if not one.startswith("@"):
                yield one
            elif one[1:] in self.lists:
                yield from self.expanded(self.lists[one[1:]])
            else:
                raise UserError(f"{one}: the study has no lists.{one[1:]}")


def names(folder: Path = FOLDER) -> list[str]:
    """All studies."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def settings(path: Path) -> list[str]:
    """The settings of a study; empty where it is one study alone."""
    return list(read_toml(path).get("settings", {}))


def load(path: Path, setting: str | None = None) -> StudyFile:
    """The study of a file, with the keys of a setting on top."""
    table = read_toml(path)
    if (found := table.pop("settings", None)) and setting is not None:
        deep_merge(table, found[setting])
    arms = table.get("arms", {})
    # A list is an arm's overrides.
    arms.update({name: {"overrides": one} for name, one in arms.items() if isinstance(one, list)})
    return validated(StudyFile, table, str(path), {})


def filled(template: str, known: Mapping[str, Any]) -> str:
    """An override with its formulas filled in."""

    def value(match: re.Match[str]) -> str:
        found = value_of(match[1], known)
        return f"{found:g}" if isinstance(found, float) else str(found)

    return FORMULA.sub(value, template)


def value_of(formula: str, known: Mapping[str, Any]) -> Any:
    """What a formula comes to. UserError where it does not."""
    helpers = {"max": max, "min": min, "round": round, "zip": zip}
    try:
        return eval(formula, {"__builtins__": {}, **helpers, **known})
    except (ArithmeticError, LookupError, NameError, SyntaxError, TypeError, ValueError) as error:
        raise UserError(f"formula {formula!r} of a study: {error}") from error
