"""Chart of the tokens that answers of each length lost.

In: the frame of `storage.queries.losses_by_length`; not empty. Out: an Altair chart. Pure, like
`figures`.
"""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard.charts.figures import HEIGHT, Chart
from dashboard.charts.legends import coloured
from dashboard.formatting import count, reason_name
from dashboard.palette import GREY, SERIES

_OTHER = "other reasons"
_OWN_COLOURS = 4


def losses_chart(frame: pd.DataFrame, reasons: Sequence[str]) -> Chart:
    """A bar for each tenth of the answers, the shortest first: the share of their tokens that was
    lost, by reason. The reasons that cost most have colours of their own."""
    parts = frame.to_dict("records")
    most = sorted(reasons, key=lambda reason: -sum(row[reason] for row in parts))
    named, rest = most[:_OWN_COLOURS], most[_OWN_COLOURS:]
    rows = []
    for part, row in enumerate(parts, start=1):
        about = {"part": f"{part}", "longest": f"up to {count(row['longest'])} tokens"}
        lost = {reason_name(reason): row[reason] for reason in named}
        if rest:
            lost[_OTHER] = sum(row[reason] for reason in rest)
        for place, (reason, tokens) in enumerate(lost.items()):
            share = tokens / row["tokens"] if row["tokens"] else 0.0
            rows.append({**about, "reason": reason, "place": place, "lost": tokens, "share": share})
    data = pd.DataFrame(rows)
    names = list(dict.fromkeys(data["reason"]))
    colours = [GREY if name == _OTHER else SERIES[i] for i, name in enumerate(names)]
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=alt.X(
                "part:O",
                sort=None,
                title="tenth of the answers, the shortest first",
                axis=alt.Axis(labelAngle=0, ticks=False),
            ),
            y=alt.Y("share:Q", stack="zero", title=None, axis=alt.Axis(format=".2~%", tickCount=4)),
            color=coloured("reason", names, colours),
            order=alt.Order("place:Q"),
            tooltip=[
                alt.Tooltip("longest:N", title="answers of"),
                alt.Tooltip("reason:N"),
                alt.Tooltip("lost:Q", title="tokens lost", format=",d"),
                alt.Tooltip("share:Q", format=".2%"),
            ],
        )
        .properties(height=HEIGHT)
    )
    return chart
