"""Alerts and events of a run as HTML.

In: `headrace.metrics.health_ranges.Alert`s (metrics that left their healthy bands) and the run's
folder name; rows of the events' table. Out: a list with a link to each chart, where an alert that
lasts comes first; a line for each event, those that warn marked.
"""

from collections.abc import Sequence
from html import escape
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from dashboard.formatting import answers_address
from headrace.errors import moment
from headrace.metrics.health_ranges import Alert
from storage.queries import SCORES
from storage.queries.metrics import MAX_ALERT_UPDATES

CHART = "chart"
"""The metric whose chart the page Learning shows, in its address."""
QUIET = (
    '<span class="hr-ok">None.</span> <span class="hr-soft">Every metric that has a healthy band '
    "is in it, or was outside for too short a time to matter.</span>"
)
CAPTION = (
    "Metrics outside their healthy bands for longer than a moment, in the newest "
    f"{MAX_ALERT_UPDATES:,} updates. A band is a first look, not a law: alerts change nothing."
)


LEVELS = ("error", "warning")
"""Those that warn."""

WARNS = '<span class="hr-warns">!</span> '


def alerts_html(alerts: Sequence[Alert], run: str) -> str:
    """All of these alerts, or a word that there are none."""
    if not alerts:
        return QUIET
    return f'<ul class="hr-alerts">{"".join(_item(alert, run) for alert in alerts)}</ul>'


def _item(alert: Alert, run: str) -> str:
    when = (
        f"since update {alert.since}, now"
        if alert.now
        else f"ended; updates {alert.since} to {alert.last}"
    )
    link = escape(f"learning?{urlencode({'run': run, CHART: alert.metric})}", quote=True)
    text = alert.text[:1].upper() + alert.text[1:]
    return (
        f'<li{"" if alert.now else " class=past"}><a href="{link}">{escape(text)}</a> '
        f'<span class="hr-soft">({when})</span> '
        f'<a class="hr-more" href="{escape(_answers(alert, run), quote=True)}">its answers</a><br>'
        f'<span class="hr-soft">{escape(alert.why[:1].upper() + alert.why[1:])}.</span></li>'
    )


def _answers(alert: Alert, run: str) -> str:
    """The address of the answers that the updates outside of the band trained.

    Of an alert of failed scorings or of cut answers it is the address of these."""
    filters: dict[str, Any] = {"at_update": alert.since, "to_update": alert.last}
    group, _, what = alert.metric.rpartition("/")
    if group.startswith("rewards/") and what == "failed":
        failed = {"sources": group.removeprefix("rewards/"), "scores": SCORES[1:]}
        filters = failed | {"sort": "scored last"}
    elif alert.metric == "response_length/clip_ratio":
        filters["statuses"] = "truncated"
    return answers_address(run, answers="training", **filters)


def event_html(row: Any) -> str:
    """One event (at, in epoch seconds, level, kind, text)."""
    mark = WARNS if row.level in LEVELS else ""
    return (
        f'<div style="margin:.28rem 0"><span class="hr-soft">{moment(row.at)}</span>&ensp;'
        f"{mark}<b>{escape(row.kind.replace('_', ' '))}</b>&ensp;{escape(row.text)}</div>"
    )


def event_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Events as a table shows them."""
    return rows.assign(at=rows["at"].map(moment), kind=rows["kind"].str.replace("_", " "))
