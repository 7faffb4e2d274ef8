"""Legends that fit a card of any width: as many columns as there is room for, long labels in lines.

In: the labels of a chart's lines. Out: an Altair legend whose layout is an expression of the
chart's width, so that the browser decides it: nothing is cut off on a phone. Pure, like `figures`.
"""

from collections.abc import Sequence

import altair as alt

CHARACTER, SYMBOL = 7.0, 34.0
"""Pixels: a character of a label, of the wider ones; the symbol with what is left free around it
and the label."""


def legend(labels: Sequence[str], *, symbol: str | None = None) -> alt.Legend:
    """A legend above the chart. `symbol`: its symbols' type, where it is not the mark's own."""
    longest = max(map(len, labels), default=1)
    entry = SYMBOL + CHARACTER * longest
    # A label as it is, or, where the chart is narrower than an entry, in lines of whole words.
    most = f"max(8, floor((width - {SYMBOL:g}) / {CHARACTER:g}))"
    pieces = f"regexp('(.{{1,' + {most} + '}})(\\\\s+|$)', 'g')"
    lines = f"split(trim(replace(datum.label, {pieces}, '$1\\n')), '\\n')"
    return alt.Legend(
        orient="top",
        title=None,
        symbolOpacity=1,
        symbolType=alt.Undefined if symbol is None else symbol,
        labelLimit=0,
        offset=4,
        columns=alt.ExprRef(f"max(1, floor(width / {entry:g}))"),
        labelExpr=f"width < {entry:g} ? {lines} : datum.label",
    )


def coloured(
    field: str,
    names: Sequence[str],
    colours: Sequence[str],
    *,
    symbol: str | None = None,
    named: bool = True,
) -> alt.Color:
    """The colours of a field's values `names`, with their `legend` where they are `named`."""
    shown = legend(names, symbol=symbol) if named else None
    scale = alt.Scale(domain=list(names), range=list(colours))
    return alt.Color(f"{field}:N", scale=scale, legend=shown)
