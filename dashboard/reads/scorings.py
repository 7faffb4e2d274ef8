"""Scorings over the time of a run: who scored, what came out, which parts it had, how long it took.

In: the sample of `storage.queries.reward_sample`, which has a row for each scoring, in order. Out:
frames by stretch of time. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboard.formatting import number
from dashboard.palette import BLUE, ORANGE, PURPLE

STRETCHES = 48
"""Maximum number of equal parts into which the time is divided."""
BINS = 12
"""Of scores."""
MOST_PARTS = 5
SCALE = 10.0
FAILURES = {"timeout": ORANGE, "crashed": PURPLE, "invalid": BLUE}
"""Kinds of failures with their colours."""


@dataclass(frozen=True)
class Scorings:
    """Frames of a sample of scorings; without rows if there is nothing.

    Attributes:
        seconds: median and 99th percentile of a scoring's seconds by source. sources, failures:
        shares over time of the sources, and of kinds of failures. scores, parts, latencies: see
        `score_bins`, `part_means` and the function of that name.
    """

    number: int
    seconds: dict[str, tuple[float, float]]
    sources: pd.DataFrame
    failures: pd.DataFrame
    scores: pd.DataFrame
    parts: pd.DataFrame
    latencies: pd.DataFrame


def scorings(sample: pd.DataFrame, sources: Sequence[str]) -> Scorings:
    """Everything that the page shows of a sample; `sources` are all of the run."""
    nothing = pd.DataFrame()
    if sample.empty:
        return Scorings(0, {}, *[nothing] * 5)
    cut, kinds = cut_time(sample), list(FAILURES)
    return Scorings(
        number=len(sample),
        seconds=source_latencies(sample),
        sources=shares(cut, "source", sources),
        failures=shares(cut, "status", kinds) if cut["status"].isin(kinds).any() else nothing,
        scores=score_bins(cut) if cut["reward"].notna().any() else nothing,
        parts=part_means(cut),
        latencies=latencies(cut),
    )


def cut_time(sample: pd.DataFrame, most: int = STRETCHES) -> pd.DataFrame:
    """The sample with `start` and `end` of each row's stretch. With too few rows for `most`
    stretches, a stretch has 20 rows on average."""
    number = max(1, min(most, len(sample) // 20))
    first, last = float(sample["x"].min()), float(sample["x"].max())
    width = max((last - first) / number, 1e-9)
    stretch = ((sample["x"] - first) / width).astype(int).clip(upper=number - 1)
    start = first + stretch * width
    return sample.assign(start=start, end=start + width)


def shares(cut: pd.DataFrame, column: str, kinds: Sequence[str]) -> pd.DataFrame:
    """Columns start, end, kind, low, high, share: of each stretch's rows, the shares that have each
    of these values in a column, stacked in order."""
    rows, at = [], ["start", "end"]
    for (start, end), found in cut.groupby(at):
        counts, low = found[column].value_counts(), 0.0
        for kind in kinds:
            share = float(counts.get(kind, 0)) / len(found)
            rows.append((start, end, kind, low, low + share, share))
            low += share
    return pd.DataFrame(rows, columns=[*at, "kind", "low", "high", "share"])


def score_bins(cut: pd.DataFrame) -> pd.DataFrame:
    """Columns start, end, low, high, share: of each stretch's scores, the share in each of BINS
    ranges, those that are empty left out."""
    good = cut.dropna(subset=["reward"])
    least, most = float(good["reward"].min()), float(good["reward"].max())
    if least == most:
        least, most = least - 0.5, most + 0.5
    edges = np.linspace(least, most, BINS + 1)
    rows = []
    for (start, end), found in good.groupby(["start", "end"]):
        counts, _ = np.histogram(found["reward"], edges)
        for place in np.flatnonzero(counts):
            share = counts[place] / len(found)
            rows.append((start, end, edges[place], edges[place + 1], share))
    return pd.DataFrame(rows, columns=["start", "end", "low", "high", "share"])


def part_means(cut: pd.DataFrame) -> pd.DataFrame:
    """Columns x, name, value: the mean of each part of the score in each stretch, at its middle;
    the MOST_PARTS that most scores have. With several sources the name begins with the source's."""
    several = cut["source"].nunique() > 1
    rows = [
        (start, end, f"{source}: {name}" if several else name, float(value))
        for start, end, source, parts in zip(
            cut["start"], cut["end"], cut["source"], cut["parts"], strict=True
        )
        if isinstance(parts, dict)
        for name, value in parts.items()
        if value is not None
    ]
    parts = pd.DataFrame(rows, columns=["start", "end", "name", "value"])
    kept = parts["name"].value_counts().index[:MOST_PARTS]
    return _by_stretch(parts[parts["name"].isin(kept)])


def by_scale(title: str, parts: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Series that fit one axis each, with a title: none is more than SCALE times as large as the
    smallest beside it."""
    if parts.empty:
        return [(title, parts)]
    sizes = parts["value"].abs().groupby(parts["name"]).max().sort_values()
    groups: list[list[str]] = []
    least = 0.0
    for name, size in sizes.items():
        if not groups or size > SCALE * least > 0:
            groups.append([])
            least = 0.0
        groups[-1].append(str(name))
        least = least or float(size)
    if len(groups) < 2:
        return [(title, parts)]
    largest = [float(sizes[names].max()) for names in groups]
    return [
        (f"{title}, up to {number(size)}", parts[parts["name"].isin(names)])
        for names, size in zip(groups, largest, strict=True)
    ]


def latencies(cut: pd.DataFrame) -> pd.DataFrame:
    """Columns x, name, value: median and 99th percentile of the seconds of a scoring, by source; of
    more than two sources the 99th percentile alone."""
    sources, known = cut["source"].nunique(), cut.dropna(subset=["seconds"])
    quantiles = {"median": 0.5, "99 %": 0.99} if sources <= 2 else {"99 %": 0.99}
    rows = [
        (start, end, f"{source} {what}" if sources > 1 else what, found["seconds"].quantile(q))
        for (start, end, source), found in known.groupby(["start", "end", "source"])
        for what, q in quantiles.items()
    ]
    return _by_stretch(pd.DataFrame(rows, columns=["start", "end", "name", "value"]))


def source_latencies(sample: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """(median, 99th percentile) of the seconds of a scoring by source."""
    known = sample.dropna(subset=["seconds"])
    return {
        str(source): (float(seconds.quantile(0.5)), float(seconds.quantile(0.99)))
        for source, seconds in known.groupby("source")["seconds"]
    }


def _by_stretch(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean of each name's values in each stretch, at the stretch's middle."""
    middle = rows.assign(x=(rows["start"] + rows["end"]) / 2)
    return middle.groupby(["x", "name"])["value"].mean().reset_index()
