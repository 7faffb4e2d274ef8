"""Rewards: who scores, what each source pays and of which parts, how it fares, and whether it still
means what it should."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts import scoring_charts
from dashboard.charts.figures import scatter_chart, series_chart
from dashboard.components import panels
from dashboard.components.alert_list import WARNS, event_html
from dashboard.formatting import (
    answers_address,
    count,
    link_html,
    metric_caption,
    number,
    series_words,
    share,
)
from dashboard.reads import scorings
from dashboard.reads.data import POINTS, RunData, is_live
from dashboard.reads.scorings import Scorings
from headrace.errors import moment, visible
from headrace.metrics.health_ranges import MIN_UPDATES_BACK
from storage import queries
from storage.queries import RewardAlert

CHARTS = (
    ("Reward by source", "mean"),
    ("Scorings that failed", "failed"),
    ("Seconds of a scoring", "seconds"),
    ("Reward above the audit", "gap"),
    ("Entropy estimate", "entropy_estimate"),
    ("Largest edit distance in a group", "edit_distance"),
    ("Length and reward, correlation", "length_correlation"),
    ("Length by source", "length"),
)
"""Title, and the last part of the metric's name."""
RANKER = (("Loss of the ranker", "ranker/loss"), ("Lists it learnt from", "ranker/lists"))
"""Where the run trains it along: title and metric."""
LINKED: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("crashed", "crashed", {"scores": "crashed"}),
    ("timeout", "timed out", {"scores": "timeout"}),
    ("invalid", "gave no score", {"scores": "invalid"}),
    ("paid_more", "paid more than the audit", {"audit": panels.PAID_MORE, "sort": panels.ABOVE}),
    ("paid_less", "paid less than the audit", {"audit": panels.PAID_LESS, "sort": panels.BELOW}),
    ("audits_failed", "with a failed audit", {"audit": "failed"}),
)
"""Columns of a source that lead to their answers: what they count, and the page's filters."""
MOST_ALERTS = 8
_QUIET = '<span class="hr-ok">None.</span> <span class="hr-soft">The monitors are quiet.</span>'
LONGEST_ERROR = 300
"""Characters of an error that are shown."""


@panels.repainted
def render(run: RunData) -> None:
    """The page."""
    panels.title(run, "Rewards")
    _, evaluation = panels.choose_answers(run)
    rows = run.throttled(queries.reward_sources, evaluation)
    if rows.empty:
        panels.empty(panels.awaited(run, "the first score"))
        return
    sources = list(rows["source"])
    found = run.scorings(tuple(sources), evaluation)
    scatter = partial(_scatter, run, evaluation)
    if evaluation is not None:
        _sources(run, rows, found, evaluation)
        panels.grid([*_scorings(run, found, sources, evaluation), scatter])
        return
    _alerts(run)
    _sources(run, rows, found, evaluation)
    panels.grid(
        [
            *_scorings(run, found, sources, evaluation),
            *(partial(_card, run, title, what, sources) for title, what in CHARTS),
            *(
                partial(panels.metric_card, run, title, [name])
                for title, name in RANKER
                if name in run.charted()
            ),
            partial(_queues, run),
            scatter,
        ]
    )


def _scorings(
    run: RunData, found: Scorings, sources: Sequence[str], evaluation: int | None
) -> Sequence[Callable[[], None]]:
    """The cards of scorings over time."""
    colours = scoring_charts.source_colours(sources)
    link = _address(run, evaluation)
    cards = [
        partial(
            panels.frame_card, "Share of each source", scoring_charts.share_chart, found.sources,
            colours, link, "sources",
            caption="Of the answers that were scored in a stretch of time, the share that "
            "each source scored: what the route sends it.",
        ),
        partial(
            panels.frame_card, "Scores over time", scoring_charts.score_chart, found.scores, link,
            caption="The distribution of rewards in each stretch of time: the stronger, the more "
            "answers have that score. Healthy: it moves up, and does not become a single line.",
            wait=panels.awaited(run, "the first reward"),
        ),
        *(
            partial(
                _lines, title, parts,
                caption="The mean of each part that a source says its score is made of, parts of "
                "like size on one axis. Healthy: the part that is meant rises, not only the one "
                "that is easy to earn.",
                wait="No source says what its scores are made of.",
            )
            for title, parts in scorings.by_scale("Parts of the score", found.parts)
        ),
        partial(
            _lines, "Latency", found.latencies, spikes=True,
            caption="Seconds of a scoring: the median, and what 99 % of them stay below. Healthy: "
            "the latter far below the source's timeout_s.",
            wait=panels.awaited(run, "the first score"),
        ),
        partial(
            panels.frame_card, "Failures by kind", scoring_charts.share_chart, found.failures,
            scorings.FAILURES, link, "scores",
            caption="Share of the scorings in a stretch of time that gave no score. Timeout: none "
            "within the deadline. Crashed: the function raised, or its process died. Invalid: what "
            "came back was no score.",
            wait=f"None of {count(found.number)} scorings failed.",
        ),
    ]  # fmt: skip
    return cards if len(sources) > 1 else cards[1:]


def _lines(
    title: str, frame: pd.DataFrame, *, caption: str, wait: str, spikes: bool = False
) -> None:
    words = series_words(frame, "wall", "") if len(frame) else ""
    panels.frame_card(
        title, series_chart, frame, x="wall", spikes=spikes, caption=caption, wait=wait,
        words=words,
    )  # fmt: skip


def _address(run: RunData, evaluation: int | None = None, **filters: Any) -> str:
    """The page of these answers."""
    answers = panels.answers_name(evaluation)
    return answers_address(run.line.run_dir.name, answers=answers, **filters)


def _scatter(run: RunData, evaluation: int | None) -> None:
    at = run.picture(samples=True)  # answers are scored between updates, too
    rows = run.read(queries.reward_lengths, evaluation, newest=POINTS, at=at)
    panels.frame_card(
        "Length against reward",
        scatter_chart,
        rows,
        caption="Each point is one of the newest answers; equal rewards are spread a little. "
        "Healthy: no slope that grows while answers get longer.",
        note="" if rows.empty else f"{count(len(rows))} answers",
        wait=panels.awaited(run, "the first reward"),
        link=_address(run, evaluation),
    )


def _alerts(run: RunData) -> None:
    with panels.framed("Alerts"):
        alerts = run.read(queries.reward_alerts, MOST_ALERTS)
        # That a judge stays away is known to the supervisor alone, and to none of the monitors.
        found = run.fresh(queries.events, limit=MOST_ALERTS, kind=queries.ALERT).itertuples()
        said = {visible(alert.text) for alert in alerts}
        lines = [event_html(row) for row in found if row.text not in said]
        lines += [_alert(run, alert) for alert in alerts]
        st.html("".join(lines) or _QUIET)
        st.caption(
            "A monitor that crosses its bound of `reward.alerts` says so once, and again only "
            f"after it was back for {MIN_UPDATES_BACK} updates. Alerts change nothing: look at the "
            "answers."
        )


def _alert(run: RunData, alert: RewardAlert) -> str:
    filters = alert_filters(alert, run.config()["reward"]["alerts"]["answers"])
    link = link_html(_address(run, **filters), alert.text)
    return (
        f'<div style="margin:.28rem 0"><span class="hr-soft">{moment(alert.at)}</span>&ensp;'
        f"{WARNS}{link}</div>"
    )


def alert_filters(alert: RewardAlert, newest: int) -> dict[str, Any]:
    """The answers that an alert of the monitors is about, as `_address` takes them: of its source,
    the `newest` that were scored when it was raised; of the entropy and of the distances, those
    scored since the update before; of a marker that none has, those of the first evaluation."""
    if " had the answer marker " in alert.text:
        return {"sources": alert.source, "evaluation": 1}
    filters = {"sources": alert.source, "scored_to": round(alert.until, 3)}
    if " exceed the audited " in alert.text:
        return filters | {"newest": newest, "audit": "audited", "sort": panels.ABOVE}
    if " go together " in alert.text:
        return filters | {"newest": newest, "scores": "ok", "sort": "longest"}
    since = {"scored_from": round(alert.since, 3)}
    return filters | since | ({"sort": panels.SURE} if ": the entropy " in alert.text else {})


def _sources(run: RunData, rows: pd.DataFrame, found: Scorings, evaluation: int | None) -> None:
    with panels.framed("Sources"):
        queues = run.latest("rewards/") if is_live(run.line) else {}
        config = run.config()
        environment, reward = config.get("environment"), config["reward"]
        if environment and not environment["scored"]:
            reward = reward | {"kind": "environment"}  # It pays, and nobody else scores.
        table = source_table(rows, reward, found.seconds, queues)
        panels.table(table, "Sources")
        for column, what in (("error", "last failure"), ("audit_error", "last failed audit")):
            known = rows.dropna(subset=[column])
            for source, error in zip(known["source"], known[column], strict=True):
                said = escape(f"{what} of {source}")
                st.html(f'<span class="hr-soft">{said}:</span> {escape(error[:LONGEST_ERROR])}')
        if links := _links(run, rows, evaluation):
            st.html(f'<ul class="hr-links">{"".join(links)}</ul>')
        st.caption(
            "All answers so far, by who scored them; median and 99 % are seconds of a "
            f"scoring, of an even sample of {count(found.number)} scorings. Healthy: hardly any "
            "failures, seconds far below the deadline, a gap that stays near what it was at first."
        )


def _links(run: RunData, rows: pd.DataFrame, evaluation: int | None) -> list[str]:
    """Links from a source's figures to their answers, as list items."""
    found = []
    for row in rows.to_dict("records"):
        for column, what, filters in LINKED:
            if row[column]:
                link = _address(run, evaluation, sources=row["source"], **filters)
                said = f"{row['source']}: {count(row[column])} {what}"
                found.append(f"<li>{link_html(link, said)}</li>")
    return found


def source_table(
    rows: pd.DataFrame,
    reward: dict[str, object],
    latency: Mapping[str, tuple[float, float]],
    queues: dict[str, float | None],
) -> pd.DataFrame:
    """The table of sources as shown; `reward` is that section of the configuration, `latency` the
    median and the 99th percentile by source, `queues` the newest gauges of a run that goes on."""
    settings = reward.get("sources") or {"default": reward}
    assert isinstance(settings, dict)
    kinds = {name: source["kind"] for name, source in settings.items()}
    everyone = max(1, rows["answers"].sum())
    shown = {
        "source": rows["source"],
        "kind": [kinds.get(name, "-") for name in rows["source"]],
        "answers": rows["answers"],
        "share": [share(answers / everyone) for answers in rows["answers"]],
        **{
            status: [
                share(part / whole)
                for part, whole in zip(rows[status], rows["answers"], strict=True)
            ]
            for status in ("ok", "timeout", "crashed", "invalid")
        },
        "reward": [_known(value) for value in rows["reward"]],
        "right": [share(None if pd.isna(value) else value) for value in rows["correct"]],
        "tokens": [_known(value) for value in rows["length"]],
        "median": [_known(latency.get(name, _UNKNOWN)[0]) for name in rows["source"]],
        "99 %": [_known(latency.get(name, _UNKNOWN)[1]) for name in rows["source"]],
        "slowest": [_known(value) for value in rows["slowest"]],
        "audits": [
            f"{count(audits)} ({count(failed)} failed)" if failed else count(audits)
            for audits, failed in zip(rows["audits"], rows["audits_failed"], strict=True)
        ],
        "gap": [_known(value) for value in rows["gap"]],
    }
    for column, gauge in (("in flight", "in_flight"), ("waiting", "queue")):
        if queues:
            found = [queues.get(f"rewards/{name}/{gauge}") for name in rows["source"]]
            shown[column] = ["-" if value is None else count(value) for value in found]
    return pd.DataFrame(shown)


_UNKNOWN = (float("nan"), float("nan"))


def _known(value: float | None) -> str:
    return number(None if pd.isna(value) else value)


def _card(run: RunData, title: str, what: str, sources: Sequence[str]) -> None:
    """A metric of every source in one chart."""
    panels.metric_card(
        run,
        title,
        [f"rewards/{source}/{what}" for source in sources],
        caption=metric_caption((f"rewards/NAME/{what}",)),
    )


def _queues(run: RunData) -> None:
    names = sorted(name for name in run.latest("rewards/") if name.endswith("/queue"))
    caption = metric_caption(("rewards/NAME/queue",))
    panels.metric_card(run, "Waiting for a score", names, "wall", samples=True, caption=caption)
