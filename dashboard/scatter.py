"""Length against reward, answer by answer.

In: a frame with columns length, reward, source; not empty. Out: an Altair chart. Pure, like
`figures`.
"""

import altair as alt
import numpy as np
import pandas as pd

from dashboard.figures import HEIGHT, Chart
from dashboard.legends import legend
from dashboard.palette import SERIES

_GOLDEN = 0.6180339887498949
_NUDGE = 0.03
"""How far points are moved at most, of the range of rewards."""


def scatter_chart(frame: pd.DataFrame, *, height: int = HEIGHT) -> Chart:
    """Rewards of answers over their lengths, a colour and a shape for each source. Points are moved
    a little up or down, the same way every time, so that many equal rewards are seen as many."""
    sources = sorted(frame["source"].unique())
    reach = float(frame["reward"].max() - frame["reward"].min()) or 1.0
    moves = 2 * (np.arange(len(frame)) * _GOLDEN % 1) - 1
    data = frame.assign(shown=frame["reward"] + moves * _NUDGE * reach)
    colours = [SERIES[i % len(SERIES)] for i in range(len(sources))]
    shown = legend(sources) if len(sources) > 1 else None
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_point(size=26, filled=True, opacity=0.55)
        .encode(
            x=alt.X(
                "length:Q", title="tokens", axis=alt.Axis(format="~s", tickCount=6, grid=False)
            ),
            y=alt.Y("shown:Q", title=None, axis=alt.Axis(format=",.4~g", tickCount=4)),
            color=alt.Color(
                "source:N", scale=alt.Scale(domain=sources, range=colours), legend=shown
            ),
            shape=alt.Shape("source:N", scale=alt.Scale(domain=sources), legend=shown),
            tooltip=[
                alt.Tooltip("source:N"),
                alt.Tooltip("length:Q", title="tokens"),
                alt.Tooltip("reward:Q", format=",.4~g"),
            ],
        )
        .properties(height=height)
    )
    return chart
