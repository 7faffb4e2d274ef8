"""Pieces that all pages are made of: live sections, chart cards, empty states.

A card is a title, the newest value, a chart and a caption that says what it means and what healthy
looks like. Without data it says what is awaited.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from html import escape
from typing import Any, Literal, cast

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard.charts import chart_spec
from dashboard.charts.chart_spec import Spec
from dashboard.charts.figures import AXES, Chart, accuracy_chart
from dashboard.charts.metric_curves import array_of, series_of
from dashboard.components.reading import literal_markdown
from dashboard.formatting import answers_address, count, link_html, metric_caption, number, share
from dashboard.palette import GREY, STATUSES
from dashboard.reads import data
from dashboard.reads.data import RunData
from headrace.errors import UserError
from headrace.metrics.registry import info_of
from storage import queries
from storage.queries import RunLine
from storage.queries.metrics import Axis

REFRESH_S = 2.0
MOST_LINKS = 9
TRAINING = "training"
ALONG = "held out, along the stream"
ANSWERS = "answers"
"""Whose answers are shown, in the address."""
PAID_MORE, PAID_LESS = "paid more", "paid less"
"""What an audit can say of a reward, as filters have it."""
ABOVE, BELOW, SURE = "most above audit", "most below audit", "least surprising"
"""Orders of answers."""
BOUND: dict[str, Any] = {"bind": "query-params"}
"""A choice that the address of the page has."""
SOME: dict[str, Any] = {"placeholder": "any", **BOUND}
"""A choice of several; none: all of them."""
FREE: dict[str, Any] = {"value": None, **BOUND}
"""A number that may be left out."""
SMOOTHING = {"none": 0.0, "2 %": 0.02, "5 %": 0.05, "20 %": 0.2}
"""Shares of the points that a running mean is over."""
_AWAITED = {
    "starting": "The run is starting: models are loaded, then the first evaluation begins.",
    "evaluating": "Held-out prompts are being answered; training goes on afterwards.",
    "training": "Generators are filling the first batch.",
}


class Jumps:
    """Links from below a page's title to its cards, for a phone, where a page is many screens long.
    The id of a card is its title's; a second card of a title has none."""

    def __init__(self) -> None:
        self.place: DeltaGenerator | None = None
        self.titles: dict[str, str] = {}

    def name(self, title: str) -> str:
        """The id of a new card, as an attribute of HTML."""
        place = "-".join(re.findall(r"\w+", title.lower()))
        if place in self.titles:
            return ""
        self.titles[place] = title
        return f' id="{place}"'

    def offer(self) -> None:
        """Write the links, where there are some."""
        if self.place is not None and len(self.titles) >= MANY_CARDS:
            links = "".join(
                f'<a href="#{key}">{escape(title)}</a>' for key, title in self.titles.items()
            )
            self.place.html(
                '<details class="hr-jumps"><summary>On this page</summary>'
                f'<nav aria-label="On this page">{links}</nav></details>'
            )


MANY_CARDS = 5
_JUMPS: ContextVar[Jumps] = ContextVar("jumps")


def repainted(body: Callable[[RunData], None]) -> Callable[[RunData], None]:
    """Decorate a page that is drawn again while its run goes on."""
    return partial(live, body=body)


def live(run: RunData, body: Callable[[RunData], None], *, follows: bool = True) -> None:
    """Draw `body` as `live_runs` does, for one run."""
    live_runs([run.line], lambda lines: body(RunData(lines[0])), follows=follows)


def live_runs(
    lines: Sequence[RunLine], body: Callable[[Sequence[RunLine]], None], *, follows: bool = True
) -> None:
    """Draw `body`, or its UserError, and links to its cards where it begins them.

    Where it `follows`, draw it again while a run goes on, and at their end rebuild the page. What
    is chosen in it draws it again, and not the page around it."""
    folders = [str(line.run_dir) for line in lines]
    was_live = any(map(data.is_live, lines))

    @st.fragment(run_every=REFRESH_S if was_live and follows else None)
    def section() -> None:
        now = [data.run_line(folder) for folder in folders]
        if was_live and not any(map(data.is_live, now)):
            st.rerun()
        _JUMPS.set(jumps := Jumps())
        try:
            body(now)
        except UserError as error:
            empty(str(error))
        jumps.offer()

    section()


def wait_for_change(run: RunData) -> None:
    """Draw the whole page again as soon as the run has written something."""
    before = data.stamp_of(run.line)

    @st.fragment(run_every=REFRESH_S if data.is_live(run.line) else None)
    def watch() -> None:
        if data.stamp_of(data.run_line(str(run.line.run_dir))) != before:
            st.rerun()

    watch()


def headline(summary: Mapping[str, Any], facts: Sequence[str]) -> None:
    """The run's name with its status and some facts; why it ended, where it did not end well."""
    text = escape("  \u00b7  ".join(facts))
    st.html(
        f'<div class="hr-line"><h1>{escape(summary["run_id"])}</h1>'
        f"{status_pill(summary['status'])}"
        f'<span class="hr-soft">{text}</span></div>'
    )
    begin_jumps()
    why = summary.get("ended") or summary["detail"]
    if why and summary["status"] in ("failed", "lost"):
        st.error(literal_markdown(why), icon=":material/error:")
    elif why and summary["status"] in ("interrupted", "stopped"):
        again = "Go on with it by `--resume` of the command that began it."
        st.info(f"The run was {literal_markdown(why)}. {again}")


def title(run: RunData, page: str) -> None:
    """The page's name, the run's, and how that stands."""
    st.html(
        f'<div class="hr-line"><h1>{escape(page)}</h1>'
        f'<span class="hr-run">{escape(run.line.run_id)}</span>{status_pill(run.line.status)}</div>'
    )
    begin_jumps()


def begin_jumps() -> None:
    """Keep a place for links to the cards that follow."""
    if jumps := _JUMPS.get(None):
        jumps.place = st.container()


def empty(text: str) -> None:
    """A quiet box that says what is awaited."""
    st.html(f'<div class="hr-empty">{escape(text)}</div>')


def awaited(run: RunData, what: str) -> str:
    """Why there is nothing to see yet, for a run in this phase."""
    if not data.is_live(run.line):
        return f"This run is over ({run.line.status}), without {what}."
    return f"Waits for {what}. {_AWAITED.get(run.line.status, '')}".strip()


def filters(*, border: bool = True) -> DeltaGenerator:
    """A frame for the filters of a page; on a phone it is folded under a switch."""
    st.toggle("Filters", key="fold")
    return st.container(border=border, key="filters")


def one_of(
    label: str, options: Iterable[str], default: str, *, key: str, help_: str | None = None
) -> str:
    """A choice of one option, which the address has."""
    chosen = st.segmented_control(
        label, list(options), default=default, required=True, key=key, help=help_, **BOUND
    )
    return chosen or default


def choose_answers(run: RunData, *, along: bool = False) -> tuple[str, int | None]:
    """Whose answers a page shows, by a choice that the address has: their purpose, and of which
    evaluation, by its number. The default is training once there was an update.

    `along`: those of evaluations along the stream can be chosen, too."""
    number = run.read(queries.asked_number)
    along = along and run.config()["evaluation"].get("mode") == "along"
    if not (number or along):
        return "train", None
    names = [TRAINING, *map(answers_name, range(1, number + 1)), *([ALONG] if along else [])]
    chosen = st.selectbox(
        "Answers of",
        names,
        index=0 if run.line.updates else number,
        key=ANSWERS,
        width=260,
        **BOUND,
    )
    if chosen == ALONG:
        return "along", None
    at = names.index(chosen or TRAINING)
    rows = run.read(queries.evaluations)
    if 0 < at <= len(rows):
        row = rows.iloc[at - 1]
        words = {"before": "before training", "after": "after training"}
        when = words.get(str(row["label"]), f"at update {row['update']}")
        st.caption(
            f"{share(row['accuracy'])} of {count(row['num_prompts'])} held-out prompts were "
            f"answered correctly {when}; {count(row['failed'])} answers have no score."
        )
    elif at:
        st.caption("This evaluation has not ended.")
    return ("eval", at) if at else ("train", None)


def axis_and_smoothing(smoothed: str, more: str = "") -> tuple[Axis, float]:
    """The horizontal axis, and the share of the points over which lines are smoothed.

    `smoothed`: the default of that share; `more`: what its help says besides."""
    axis = st.segmented_control(
        "Horizontal axis", list(AXES), default="update", required=True,
        format_func=AXES.__getitem__, key="axis", **BOUND,
    )  # fmt: skip
    told = f"A running mean over this share of the points, on top of the line as it is.{more}"
    smoothing = one_of("Smoothing", SMOOTHING, smoothed, key="smoothing", help_=told)
    return cast(Axis, axis or "update"), SMOOTHING[smoothing]


def card_title(title: str, note: str = "") -> None:
    """A heading of the second order; `note` stands at its right."""
    soft = f'<span class="hr-soft hr-note">{escape(note)}</span>' if note else ""
    jumps = _JUMPS.get(None)
    name = jumps.name(title) if jumps else ""
    st.html(f'<div>{soft}<h2 class="hr-card"{name}>{escape(title)}</h2></div>')


@contextmanager
def framed(
    title: str, note: str = "", *, height: Literal["content", "stretch"] = "content"
) -> Iterator[None]:
    """A frame around what is drawn meanwhile, with a `card_title`."""
    with st.container(border=True, height=height):
        card_title(title, note)
        yield


def figures(*shown: tuple[str, str, str]) -> None:
    """Figures side by side: what each is, its value and a note."""
    cells = "".join(
        f"<div><span>{escape(what)}</span><b>{escape(value)}</b><span>{escape(note)}</span></div>"
        for what, value, note in shown
    )
    st.html(f'<div class="hr-figures">{cells}</div>')


def section(title: str) -> None:
    """A heading over several cards."""
    st.html(f'<h2 class="hr-section">{escape(title)}</h2>')


def few_rows(rows: Sequence[Mapping[str, str]]) -> None:
    """A table of rows that fit a screen, which the browser draws without the code of `table`."""
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row.values())}</tr>" for row in rows
    )
    st.html(f'<table class="hr-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>')


def table(frame: pd.DataFrame, title: str) -> None:
    """Rows under their columns' names; screen readers read the title."""
    st.dataframe(chart_spec.without_index(frame), hide_index=True, width="stretch", alt=title)


def draw(chart: Spec, title: str, words: str) -> None:
    """A chart with a label that screen readers read."""
    rows = {name: chart_spec.without_index(each) for name, each in chart["datasets"].items()}
    told = {**chart, "datasets": rows, "description": f"{title}. {words}"}
    st.vega_lite_chart(told, width="stretch")


def card(
    title: str,
    chart: Spec | None,
    caption: str,
    *,
    note: str = "",
    wait: str = "",
    words: str = "",
    links: str = "",
) -> None:
    """A chart in a frame with its title and caption; `note` stands at the right of the title,
    `links` (HTML) below it.
    The caption may have bold words and line breaks of Markdown; the rest stays as it is, for a
    page of captions that are read as Markdown is drawn later.
    `words` say what the chart shows to who cannot see it; without them the caption does."""
    with framed(title, note, height="stretch"):
        if chart is None:
            empty(wait or "Nothing to show yet.")
        else:
            draw(chart, title, words or caption.replace("**", "").replace("  \n", " "))
        text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(caption)).replace("  \n", "<br>")
        more = f'<div class="hr-soft">{links}</div>' if links else ""
        st.html(f'<p class="hr-caption">{text}</p>{more}')


def frame_card(
    title: str,
    make: Callable[..., Chart],
    frame: pd.DataFrame,
    *more: Any,
    caption: str,
    wait: str = "",
    note: str = "",
    words: str = "",
    links: str = "",
    **options: Any,
) -> None:
    """A `card` of the chart that `make` makes of a frame and of what else it is given, once for the
    same rows; a frame without rows has no chart."""
    chart = chart_spec.kept(make, frame, *more, **options) if len(frame) else None
    card(title, chart, caption, note=note, wait=wait, words=words, links=links)


def metric_card(
    run: RunData,
    title: str,
    names: Sequence[str],
    x: Axis = "update",
    *,
    samples: bool = False,
    bounds: Sequence[str] = (),
    smoothing: float = 0.0,
    caption: str | None = None,
) -> None:
    """A card of metrics over an axis; the caption comes from the metrics' own table."""
    picture = run.picture(samples=samples)
    found = series_of(*picture, run, tuple(names), x, samples, tuple(bounds), smoothing)
    what = "the first sample" if samples else "an update that has it"
    card(
        title,
        found.spec,
        caption if caption is not None else metric_caption(names),
        note=_newest(run, names[0], found.newest) if len(names) == 1 else "",
        wait=awaited(run, what),
        words=found.words,
    )


def accuracy_card(run: RunData, x: Axis = "train_time") -> None:
    """A card of the held-out accuracies."""
    rows = run.evaluations()
    frame_card(
        "Held-out accuracy", accuracy_chart, rows, x=x,
        caption="Share of held-out prompts answered correctly, by update or by training time "
        "(evaluations stop that clock); the band is at least one standard error. Healthy: rising.",
        links=_wrong_answers(run, rows),
        note="" if rows.empty else f"{count(rows['num_prompts'].iloc[-1])} prompts",
        wait=awaited(run, "the first evaluation"),
        link=answers_address(run.line.run_dir.name, verdict="wrong"),
    )  # fmt: skip


def _wrong_answers(run: RunData, rows: pd.DataFrame) -> str:
    """Links to the wrong answers of the first evaluation and the newest ones, for the keyboard and
    for points that lie close together."""
    numbers = [place + 1 for place in rows.index]
    shown = [*numbers[:1], *numbers[max(1, len(rows) - MOST_LINKS) :]]
    name = run.line.run_dir.name
    links = [
        link_html(answers_address(name, verdict="wrong", answers=answers_name(number)), str(number))
        for number in shown
    ]
    return f"What it got wrong, by evaluation: {', '.join(links)}." if links else ""


def answers_name(evaluation: int | None, purpose: str = "train") -> str:
    """Name of the answers of an evaluation (None: of none), in pages and addresses."""
    if evaluation is not None:
        return f"evaluation {evaluation}"
    return {"along": ALONG, "probe": "continuations"}.get(purpose, TRAINING)


def array_card(run: RunData, title: str, name: str) -> None:
    """A card of a metric that is an array."""
    wait = awaited(run, "an update that has it")
    card(title, array_of(*run.picture(), run, name), metric_caption((name,)), wait=wait)


def _newest(run: RunData, name: str, drawn: float | None) -> str:
    """The last value of a metric with its unit: of a run that goes on as it is now, for its chart
    may wait for the next pixel."""
    value = run.latest("").get(name) if data.is_live(run.line) else None
    value = drawn if value is None else value
    if value is None:
        return ""
    unit = info_of(name).unit
    return share(value) if unit == "share" else f"{number(value)} {unit}".strip()


def status_pill(status: str) -> str:
    """A status as HTML: word, dot, colour."""
    is_live = " live" if status not in data.FINAL else ""
    colour = STATUSES.get(status, GREY)
    return (
        f'<span class="hr-pill{is_live}" style="border-color:{colour}">'
        f'<i style="background:{colour}"></i>{escape(status)}</span>'
    )


def grid(cards: Sequence[Callable[[], None]], columns: int = 2) -> None:
    """Cards in rows of a fixed number, the last ones as wide as the rest of their row."""
    for first in range(0, len(cards), columns):
        row = cards[first : first + columns]
        for column, fill in zip(st.columns(len(row)), row, strict=True):
            with column:
                fill()
