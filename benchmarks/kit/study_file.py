"""Format of studies: TOML files of arms, overrides, seeds in `benchmarks/studies`.

In: a file, and the name of one of its settings where it has several. Out: `StudyFile`; any mistake
is a `UserError` of one line. The meaning of the keys is documented here.

Two kinds of strings are more than text. An override may hold `{formula}`s, which are filled from
the study's variables and from an arm's point; `@NAME` stands for the overrides of `lists.NAME`.
Columns and plots compute figures of a row by formulas (`benchmarks.kit.study_table`). Formulas are
Python expressions without builtins: a study is trusted like code.
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
Value = Number | str
Point = Mapping[str, Value]
"""An arm's point in its grid: a value for each coordinate; formulas name them."""


class _StudyTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Grid(_StudyTable):
    """The starting point of tuning, and the alternatives of each coordinate in turn."""

    start: dict[str, Value]
    alternatives: dict[str, tuple[Value, ...]]

    @property
    def budget(self) -> int:
        """Maximum number of points that tuning runs."""
        return 1 + sum(map(len, self.alternatives.values()))


class ArmTable(_StudyTable):
    """An arm: `overrides` on top of the study's, its recipe, the grid of its tuning."""

    overrides: tuple[str, ...] = ()
    recipe: str | None = None
    grid: str | None = None


class ReducedStudy(_StudyTable):
    """Arms and number of seeds of a run with `--reduced`."""

    arms: tuple[str, ...]
    seeds: int


class StudyColumn(_StudyTable):
    """A further column of the table: its title, a figure's formula, and its format."""

    title: str
    figure: str
    form: str


class Panel(_StudyTable):
    """Axes of a plot: `dots` (a line per arm), `x` and `y` (curves), or a sweep.

    A sweep has, by its label, the arm at each x."""

    dots: str | None = None
    x: str | None = None
    y: str | None = None
    sweep: dict[str, dict[str, str]] = {}
    arms: tuple[str, ...] | None = None
    xlabel: str
    ylabel: str = ""
    level: float | None = None
    """Height of a horizontal line."""


class Plot(_StudyTable):
    """A plot of the study, a file of its own."""

    file: str
    caption: str
    size: tuple[Number, Number] | None = None
    panels: tuple[Panel, ...]


class Preparation(_StudyTable):
    """A file or model folder that runs need, is not checked in, and a module creates."""

    makes: str
    module: str
    arguments: tuple[str, ...]


class TuningTable(_StudyTable):
    """Settings of tuning: its seeds, its target accuracy, overrides of its runs alone."""

    seeds: tuple[int, ...]
    target: float | None = None
    overrides: tuple[str, ...] = ()


class Variant(_StudyTable):
    """An arm of a part: the arm `of` with other coordinates and overrides.

    At its best point, or where tuning begins (`start`); other coordinates are formulas of its own
    ones. `against`: the arm of the part, as `OF, NAME`, that it is compared with; `own_target`: the
    target is that arm's, the task being another."""

    name: str
    of: str
    start: bool = False
    point: dict[str, str] = {}
    overrides: tuple[str, ...] = ()
    against: str | None = None
    own_target: bool = False


class StudyPart(_StudyTable):
    """Further runs of a study, with their own option; `tuned`: with tuning's settings.

    `overrides` and `against` are those of all its arms."""

    about: str
    title: str | None = None
    """Title of the arms' column, where they are variants of one arm."""
    seeds: tuple[int, ...]
    tuned: bool = False
    overrides: tuple[str, ...] = ()
    against: str | None = None
    arms: tuple[Variant, ...]


class Race(_StudyTable):
    """A race to a target: a share of the reference's median final accuracy.

    Other shares are reported, too. `ratio`: the arm whose seconds the reference's are divided by.
    `quotients`: by name, two arms and the meaning of the quotient of their seconds."""

    share: float
    other_shares: tuple[float, ...] = ()
    ratio: str
    quotients: dict[str, tuple[str, str, str]] = {}


class StudyFile(_StudyTable):
    """The contents of a study's file."""

    recipe: str = ""
    seeds: tuple[int, ...] = ()
    reference: str = ""
    """The arm that the others are compared with, seed by seed."""
    jobs: int | None = None
    """Runs at a time. None: one per core."""
    timed: bool = True
    """Figures are of seconds, so that a run needs a quiet machine. False: of updates and tokens."""
    drawn: bool = False
    """Draw the order of the arms for every two seeds."""
    variables: dict[str, Value] = {}
    lists: dict[str, tuple[str, ...]] = {}
    overrides: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    """Overrides of all runs but those of tuning."""
    arms: dict[str, ArmTable] = {}
    reduced: ReducedStudy | None = None
    prepare: tuple[Preparation, ...] = ()
    facts: str | None = None
    """`module:function` that returns further fields of a row from a run's folder."""
    columns: tuple[StudyColumn, ...] = ()
    plots: tuple[Plot, ...] = ()
    grids: dict[str, Grid] = {}
    tuning: TuningTable | None = None
    race: Race | None = None
    parts: dict[str, StudyPart] = {}

    def expanded(self, overrides: Sequence[str]) -> Iterator[str]:
        """Replace named lists by their overrides. UserError for an unknown name."""
        for one in overrides:
            if not one.startswith("@"):
                yield one
            elif one[1:] in self.lists:
                yield from self.expanded(self.lists[one[1:]])
            else:
                raise UserError(f"{one}: the study has no lists.{one[1:]}")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def settings(path: Path) -> list[str]:
    """Return the settings of a study; empty where it has only one."""
    return list(read_toml(path).get("settings", {}))


def load(path: Path, setting: str | None = None) -> StudyFile:
    """Read the study of a file, with the keys of a setting on top."""
    table = read_toml(path)
    if (found := table.pop("settings", None)) and setting is not None:
        deep_merge(table, found[setting])
    arms = table.get("arms", {})
    # A list is an arm's overrides.
    arms.update({name: {"overrides": one} for name, one in arms.items() if isinstance(one, list)})
    return validated(StudyFile, table, str(path), {})


def filled(template: str, known: Mapping[str, Any]) -> str:
    """Fill in the formulas of an override."""

    def value(match: re.Match[str]) -> str:
        found = value_of(match[1], known)
        return f"{found:g}" if isinstance(found, float) else str(found)

    return FORMULA.sub(value, template)


def value_of(formula: str, known: Mapping[str, Any]) -> Any:
    """Evaluate a formula. UserError where it fails."""
    helpers = {"max": max, "min": min, "round": round, "zip": zip}
    try:
        return eval(formula, {"__builtins__": {}, **helpers, **known})
    except (ArithmeticError, LookupError, NameError, SyntaxError, TypeError, ValueError) as error:
        raise UserError(f"formula {formula!r} of a study: {error}") from error
