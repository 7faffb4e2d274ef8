"""Cached reads for the pages.

In: a run's folder and its stamp, the time of its newest record. Out: what `storage.queries`
returns. A read is kept as long as the stamp stays, so that a page that repaints costs nothing while
nothing happens; only the run's line itself is asked for each time. Everything is bounded. Texts are
as people may see them (`headrace.errors.visible`): who wrote them may be a model.
"""

import math
import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pandas as pd
import streamlit as st

from dashboard.reads.critic import CriticReport, report
from dashboard.reads.scorings import Scorings, scorings
from dashboard.reads.throttled import ThrottledReads
from headrace.errors import visible
from headrace.metrics.health_ranges import Alert
from headrace.metrics.registry import METRICS, pattern_of
from storage import queries
from storage.queries import RowPage, RunLine, TrajectoryDetail
from storage.queries.metrics import Axis

T = TypeVar("T")
POINTS = 300
"""Maximum number of points per chart line: one for each two pixels of a card."""
LINES = 2
"""In a chart of more lines than this, each line has fewer points."""
FINAL = (*queries.ENDED, queries.UNREADABLE)
_FRESH_S = 1.0
THROTTLED = ThrottledReads()
REDRAWN_S = 10.0
"""Minimum seconds between redraws of a live run's chart: each costs some thousand bytes, and its
newest value stands beside its title."""
FEW = 40
"""Updates, or seconds, up to which each is drawn as it comes."""
_PICTURES: dict[tuple[str, bool], tuple[str, float]] = {}
"""What the charts of live runs show, and since when, by folder and whether they are of samples."""


@st.cache_data(ttl=_FRESH_S, max_entries=16, show_spinner=False)
def runs(root: str) -> list[RunLine]:
    """All runs under the root, newest first."""
    lines = queries.list_runs(Path(root))
    return [line if line.detail.isprintable() else shown(line) for line in lines]


@st.cache_data(ttl=_FRESH_S, max_entries=64, show_spinner=False)
def run_line(run_dir: str) -> RunLine:
    """Present line of one run, readable or not."""
    return shown(queries.any_line(Path(run_dir)))


def stamp_of(line: RunLine) -> str:
    """A value that changes with every record that is written and with every change of the
    status."""
    return f"{line.status} {line.updates} {line.wall_s:.3f}"


def is_live(line: RunLine) -> bool:
    """Return whether the run will write more."""
    return line.status not in FINAL


def quantum(length: float) -> int:
    """Growth after which something of this length looks longer: a power of two, less
    than a point of a chart, and at least 1."""
    return int(2 ** max(0, math.floor(math.log2(max(1.0, length / POINTS)))))


def shown(value: T) -> T:
    """The same with all texts in it visible."""
    found: Any = value
    if isinstance(value, str):
        found = visible(value)
    elif isinstance(value, pd.DataFrame):
        others = value.select_dtypes(exclude="number")
        mapped = {str(n): c.map(shown, na_action="ignore") for n, c in others.items()}
        found = value.assign(**mapped)
    elif isinstance(value, list):
        found = [shown(each) for each in value]
    elif isinstance(value, dict):
        found = {name: shown(each) for name, each in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(value, **{f.name: shown(getattr(value, f.name)) for f in fields(value)})
    return cast(T, found)


class RunData:
    """One run as it stood when the stamp was taken."""

    def __init__(self, line: RunLine) -> None:
        self.line = line
        self._at = (str(line.run_dir), stamp_of(line))

    def picture(self, *, samples: bool = False) -> tuple[str, str]:
        """The folder, and a value that changes whenever a chart of metrics would look otherwise: at
        an update, or of `samples` at any record, and of a long run when there is a point more."""
        line, folder = self.line, self._at[0]
        length: float = line.wall_s if samples else line.updates
        if not is_live(line):
            return self._at
        now = f"{line.status} {line.lineage} {length // quantum(length):.0f} of {quantum(length)}"
        drawn, at = _PICTURES.get((folder, samples), ("", 0.0))
        is_young = time.monotonic() - at < REDRAWN_S and length > FEW
        if is_young and drawn.startswith(f"{line.status} {line.lineage} "):
            return folder, f"{drawn} {samples}"
        if drawn != now:
            _PICTURES[folder, samples] = now, time.monotonic()
        return folder, f"{now} {samples}"

    def throttled(self, ask: Callable[..., T], *wanted: Any, stamp: str = "") -> T:
        """Result of a read of the folder; of a live run it may be a little older, where it takes
        long."""
        folder, newest = self._at
        key = (folder, ask.__name__, *wanted)
        status = self.line.status
        found: T = THROTTLED.read(
            key, stamp or newest, status, lambda: shown(ask(Path(folder), *wanted))
        )
        return found

    def read(
        self, ask: Callable[..., T], *wanted: Any, at: tuple[str, str] | None = None, **how: Any
    ) -> T:
        """Result of a read of the folder, one of `storage.queries`, kept as long as the run's
        stamp, or `at`, stays."""
        folder, stamp = at or self._at
        found: T = _read(folder, stamp, ask.__name__, wanted, how, ask)
        return found

    def summary(self) -> dict[str, Any]:
        """`storage.queries.run_figures`."""
        return self.throttled(queries.run_figures)

    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        return queries.run_config(self.line.run_dir)

    def series(
        self, names: tuple[str, ...], x: Axis = "update", *, samples: bool = False
    ) -> pd.DataFrame:
        """Metrics over an axis, at most POINTS a name."""
        points = POINTS * LINES // max(LINES, len(names)) if samples else POINTS
        picture = self.picture(samples=samples)
        how = {"samples": samples, "points": points}
        return self.read(queries.metric_series, names, x, **how, at=picture)

    def array(self, name: str) -> pd.DataFrame:
        """A metric that is an array, over the updates."""
        return self.read(queries.metric_arrays, name, points=POINTS // 4, at=self.picture())

    def charted(self) -> list[str]:
        """Described metrics that are one number, but for those of processes, by name."""
        gauges = ("cpu/NAME", "gpu/NAME", "heartbeat/NAME", "memory/NAME")
        names = self.read(queries.metric_names, at=self.picture())
        patterns = {name: pattern_of(name) for name in names}
        return [name for name, p in patterns.items() if p in METRICS and p not in gauges]

    def latest(self, prefix: str) -> dict[str, float | None]:
        """Newest values of the metrics whose name begins so."""
        found = self.read(queries.latest_metrics)
        return {name: value for name, value in found.items() if name.startswith(prefix)}

    def scorings(self, sources: tuple[str, ...], evaluation: int | None = None) -> Scorings:
        """Scorings over the whole run, or an evaluation, by these sources; of a live run they
        change when there is something more to see."""
        stamp = self.picture(samples=True)[1] if evaluation is None else ""
        return self.throttled(_scorings, sources, evaluation, stamp=stamp)

    def alerts(self) -> list[Alert]:
        """Metrics that left their healthy bands, see `storage.queries.band_alerts`."""
        stamp = f"{self.line.status} {self.line.lineage} {self.line.updates}"
        return self.throttled(queries.band_alerts, stamp=stamp)

    def fresh(self, ask: Callable[..., T], **how: Any) -> T:
        """Result of a read of the folder that changes without a new record in the journal, such as
        what the supervisor writes; about a second old at most."""
        found: T = _fresh(self._at[0], ask.__name__, how, ask)
        return found

    def evaluations(self) -> pd.DataFrame:
        """Held-out evaluations in order, but those that a rollback undid; the index counts all."""
        rows = self.read(queries.evaluations)
        return rows[~rows["abandoned"].astype(bool)]

    def activity(self, seconds: float | None) -> pd.DataFrame:
        """The activity of all processes in the last seconds; None: in the whole run, drawn again
        when it is longer by a stretch."""
        stamp = self.picture(samples=True)[1] if seconds is None else ""
        return self.throttled(_activity, seconds, stamp=stamp)

    def lives(self, newest: int, seconds: float | None) -> pd.DataFrame:
        """`storage.queries.lives` of the last seconds; None: of the whole run."""
        stamp = self.picture(samples=True)[1] if seconds is None else ""
        return self.throttled(_lives, newest, seconds, stamp=stamp)

    def dropped(self) -> dict[str, int]:
        """Dropped tokens by reason."""
        return self.throttled(queries.dropped_tokens)

    def critic(self, first: int, last: int) -> CriticReport | None:
        """Values of the value model in these updates; None where none were recorded. It is not
        read again for every token of a live run: what an update trained stays as it is."""
        kept = f"{self.line.status} {self.line.lineage}"
        return _critic(self._at[0], kept, first, last)

    def page(self, *, response: str = "", **wanted: Any) -> RowPage:
        """A page of trajectories, see `storage.queries.trajectory_page`; with `response`, of those
        whose response contains that text. Of a live run these are as of its
        last update, because reading all responses again for every token takes long."""
        return _page(*self._at, f"{self.line.status} {self.line.updates}", response, wanted)

    def trajectory(self, trajectory_id: int) -> TrajectoryDetail:
        """One trajectory with every token; UserError where there is none."""
        return _trajectory(*self._at, trajectory_id)


@st.cache_data(max_entries=256, show_spinner=False)
def _read(
    run_dir: str,
    stamp: str,
    name: str,
    wanted: tuple[Any, ...],
    how: dict[str, Any],
    _ask: Callable[..., Any],
) -> Any:
    return shown(_ask(Path(run_dir), *wanted, **how))


@st.cache_data(ttl=_FRESH_S, max_entries=48, show_spinner=False)
def _fresh(run_dir: str, name: str, how: dict[str, Any], _ask: Callable[..., Any]) -> Any:
    return shown(_ask(Path(run_dir), **how))


def _scorings(run_dir: Path, sources: tuple[str, ...], evaluation: int | None) -> Scorings:
    return scorings(queries.reward_sample(run_dir, evaluation), sources)


def _activity(run_dir: Path, seconds: float | None) -> pd.DataFrame:
    return queries.activity(run_dir, since=_since(run_dir, seconds))


def _lives(run_dir: Path, newest: int, seconds: float | None) -> pd.DataFrame:
    return queries.lives(run_dir, newest=newest, since=_since(run_dir, seconds))


def _since(run_dir: Path, seconds: float | None) -> float | None:
    line = queries.run_line(run_dir)
    return None if seconds is None else (line.started_at or 0.0) + line.wall_s - seconds


@st.cache_data(max_entries=16, show_spinner=False)
def _critic(run_dir: str, stamp: str, first: int, last: int) -> CriticReport | None:
    sample = queries.critic_sample(Path(run_dir), first, last)
    if not len(sample.tokens):
        return None
    advantages = queries.run_config(Path(run_dir))["algorithm"]["advantages"]
    return report(sample, gamma=advantages["gamma"], boundary=advantages["boundary"])


@st.cache_data(max_entries=64, show_spinner=False)
def _page(
    run_dir: str, stamp: str, searched: str, response: str, wanted: dict[str, Any]
) -> RowPage:
    # Those that were found are looked up here: as a part of what is asked for, a million numbers
    # would have to be hashed to find the page.
    filters = dict(wanted.get("filters", {}))
    if response:
        filters["trajectory_id"] = _search(run_dir, searched, response, filters["purpose"])
    return shown(queries.trajectory_page(Path(run_dir), **{**wanted, "filters": filters}))


@st.cache_data(max_entries=8, show_spinner="reading all responses")
def _search(run_dir: str, stamp: str, text: str, purpose: str) -> list[int]:
    return queries.search_responses(Path(run_dir), text, purpose=purpose)


@st.cache_data(max_entries=32, show_spinner=False)
def _trajectory(run_dir: str, stamp: str, trajectory_id: int) -> TrajectoryDetail:
    return shown(queries.trajectory_detail(Path(run_dir), trajectory_id))
