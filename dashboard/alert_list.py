"""The list of alerts: metrics that left their healthy bands, each with a link to its chart.

In: `headrace.bands.Alert`s and the run's folder name. Out: HTML. An alert that lasts comes first.
"""

from collections.abc import Sequence
from html import escape
from urllib.parse import urlencode

from headrace.bands import Alert
from storage.queries.alerts import MOST_UPDATES

CHART = "chart"
"""The metric whose chart the page Learning shows, in its address."""
QUIET = (
    '<span class="hr-ok">None.</span> <span class="hr-soft">Every metric that has a healthy band '
    "is in it, or was outside for too short a time to matter.</span>"
)
CAPTION = (
    "Metrics outside their healthy bands for longer than a moment, in the newest "
    f"{MOST_UPDATES:,} updates. A band is a first look, not a law: alerts change nothing."
)


def chart_link(run: str, metric: str) -> str:
    """The address of the chart of a metric."""
    return f"learning?{urlencode({'run': run, CHART: metric})}"


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
    link = escape(chart_link(run, alert.metric), quote=True)
    text = alert.text[:1].upper() + alert.text[1:]
    return (
        f'<li{"" if alert.now else " class=past"}><a href="{link}">{escape(text)}</a> '
        f'<span class="hr-soft">({when})</span><br>'
        f'<span class="hr-soft">{escape(alert.why[:1].upper() + alert.why[1:])}.</span></li>'
    )
