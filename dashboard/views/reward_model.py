"""A reward model's training, or a policy's fine-tuning: how it stands, its curves, its report.

All pages show it alike, because such a run has no generators and no trajectories.
"""

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.chart_spec import kept
from dashboard.charts.figures import reliability_chart, series_chart, thinned
from dashboard.components import panels, reading
from dashboard.formatting import count, duration, number, share
from dashboard.reads.data import POINTS, RunData
from headrace.run_files.reward_model_run import read_report
from storage import queries

CHARTS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("Loss", ("loss", "held_out/loss"), "",
     "Mean of the objective's loss, of each step and of the held-out examples. Healthy: falling; "
     "held out rising again means that it learns the examples by heart."),
    ("Held-out perplexity", ("held_out/perplexity",), "",
     "exp of the held-out loss: the model is as unsure as among this many tokens alike. Healthy: "
     "falling."),
    ("Held-out accuracy", ("held_out/accuracy",), "share",
     "Share of held-out pairs, or of lines labelled 1 or -1, that come out right. Healthy: "
     "rising."),
    ("Calibration error", ("held_out/ece",), "share",
     "Mean distance between what the model forecasts and what came true. Healthy: near 0."),
    ("Position bias", ("held_out/gap", "held_out/bias"), "share",
     "Accuracy with the better answer first against second, and |E[p(a,b) + p(b,a)] - 1|. "
     "Healthy: both near 0."),
    ("Area under the curve", ("held_out/auc",), "share",
     "Share of (good, bad) lines in which the good one scores more. Healthy: rising to 1."),
    ("Ranking", ("held_out/map", "held_out/ndcg_1", "held_out/ndcg_10"), "share",
     "Of held-out lists: mean average precision, and NDCG at 1 and 10. Flat while sessions are "
     "contrasted. Healthy: rising in the second stage."),
    ("Variants recognised", ("held_out/recognised",), "share",
     "Share of variants of sessions whose other variant was nearest, in the last 20 steps of the "
     "first stage. Healthy: above 0.7 at its end."),
    ("Gradient norm", ("grad_norm",), "", "Before clipping. Healthy: no jumps."),
    ("Learning rate", ("lr",), "", "Of each step."),
)  # fmt: skip


FIGURES = (
    ("Held-out accuracy", "accuracy", "Calibration error", "ece"),
    ("Held-out MAP", "map", "Variants recognised", "recognised"),
)
"""Of reward models and of rankers: two titles, each with the name of its figure."""


@panels.repainted
def render(run: RunData) -> None:
    """The page."""
    summary = run.summary()
    _headline(summary)
    _figures(summary)
    curves = run.throttled(queries.reward_model_curves)
    known = set(curves.dropna(subset=["value"])["name"])
    drawn = [chart for chart in CHARTS if known & set(chart[1])]
    cards = [partial(_card, curves, *chart) for chart in drawn]
    report = read_report(run.line.run_dir)
    if report is not None and "calibration" in report["after"]:
        cards.append(partial(_reliability, report["after"]["calibration"]["bins"]))
    if not cards:
        panels.empty(panels.awaited(run, "the first look at the held-out examples"))
    panels.grid(cards)
    page = queries.reward_model_page(run.line.run_dir)
    if page is not None:
        with st.expander("The report"):
            # The picture beside it is drawn above, from the same numbers.
            lines = (line for line in page.splitlines() if not line.startswith("!["))
            st.markdown(reading.inert_markdown("\n".join(lines)))


def _headline(summary: dict[str, Any]) -> None:
    facts = [
        summary["kind"], summary["objective"], f"seed {summary['seed']}",
        duration(summary["wall_s"]),
    ]  # fmt: skip
    panels.headline(summary, facts)
    if summary["of_steps"]:
        part = min(1.0, summary["steps"] / summary["of_steps"])
        text = f"step {count(summary['steps'])} of {count(summary['of_steps'])}"
        st.progress(part, text=text)


def _figures(summary: dict[str, Any]) -> None:
    before, after = summary["held_out"]["before"], summary["held_out"]["after"]
    columns = st.columns(4)
    if summary["objective"] == "sft":
        title, name, other, second = "Held-out loss", "loss", "Perplexity", "perplexity"
        columns[0].metric(title, number(after.get(name, before.get(name))), border=True)
    else:
        title, name, other, second = FIGURES[summary["objective"] == "ranker"]
        columns[0].metric(
            title,
            share(after.get(name, before.get(name))),
            _change(before.get(name), after.get(name)),
            border=True,
        )
    columns[1].metric("Loss", number(summary["loss"]), border=True)
    columns[2].metric(other, number(after.get(second, before.get(second))), border=True)
    columns[3].metric("Tokens trained", count(summary["tokens"]), border=True)


def _change(before: float | None, after: float | None) -> str | None:
    if before is None or after is None:
        return None
    return f"{100 * (after - before):+.1f} points"


def _card(curves: Any, title: str, names: tuple[str, ...], unit: str, caption: str) -> None:
    found = curves[curves["name"].isin(names)].dropna(subset=["value"])
    lines = pd.concat(thinned(line, ["value"], POINTS) for _, line in found.groupby("name"))
    panels.card(title, kept(series_chart, lines, x="step", names=names, unit=unit), caption)


def _reliability(bins: list[dict[str, Any]]) -> None:
    panels.card(
        "Calibration",
        kept(reliability_chart, bins) if bins else None,
        "What the model forecasts against the share that came true, on the held-out examples; the "
        "size of a dot is how many there are. Healthy: on the line.",
    )
