"""Rewards: what each source pays, how it fares, and whether it still means what it should."""

import time
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path

import pandas as pd
import streamlit as st

from dashboard import panels
from dashboard.data import RunData
from dashboard.palette import ORANGE
from dashboard.scatter import scatter_chart
from dashboard.words import count, metric_caption, number, share
from storage.queries import ALERT

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
MOST_ALERTS = 8
_QUIET = '<span class="hr-ok">None.</span> <span class="hr-soft">The monitors are quiet.</span>'
LONGEST_ERROR = 300
"""Characters of an error that are shown."""


def render(run: RunData, root: Path) -> None:
    """The page."""
    panels.live(run, _body)


def _body(run: RunData) -> None:
    panels.title(run, "Rewards")
    rows = run.reward_sources()
    if rows.empty:
        panels.empty(panels.awaited(run, "the first score"))
        return
    _alerts(run)
    _sources(run, rows)
    sources = list(rows["source"])
    panels.grid(
        [
            *(partial(_card, run, title, what, sources) for title, what in CHARTS),
            partial(_queues, run),
            partial(_scatter, run),
        ]
    )


def _alerts(run: RunData) -> None:
    rows = run.events(MOST_ALERTS, ALERT)
    with st.container(border=True):
        st.html("<b>Alerts</b>")
        lines = [_alert(at, text) for at, text in zip(rows["at"], rows["text"], strict=True)]
        st.html("".join(lines) or _QUIET)
        st.caption(
            "A monitor that crosses its bound of `reward.alerts` says so once, and again only "
            "after it was back. Alerts change nothing: look at the answers."
        )


def _alert(at: float, text: str) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    return (
        f'<div style="margin:.28rem 0"><span class="hr-soft">{clock}</span>&ensp;'
        f'<b style="color:{ORANGE}">!</b> {escape(text)}</div>'
    )


def _sources(run: RunData, rows: pd.DataFrame) -> None:
    with st.container(border=True):
        st.html("<b>Sources</b>")
        st.dataframe(source_table(rows, run.config()["reward"]), hide_index=True, width="stretch")
        for column, what in (("error", "last failure"), ("audit_error", "last failed audit")):
            known = rows.dropna(subset=[column])
            for source, error in zip(known["source"], known[column], strict=True):
                st.html(_failure(f"{what} of {source}", error))
        st.caption(
            "All training answers so far, by who scored them. Healthy: hardly any failures, "
            "seconds far below the deadline, a gap that stays near what it was at first."
        )


def _failure(what: str, error: str) -> str:
    return f'<span class="hr-soft">{escape(what)}:</span> {escape(error[:LONGEST_ERROR])}'


def source_table(rows: pd.DataFrame, reward: dict[str, object]) -> pd.DataFrame:
    """The table of sources as shown; `reward` is that section of the configuration."""
    settings = reward.get("sources") or {"default": reward}
    assert isinstance(settings, dict)
    kinds = {name: source["kind"] for name, source in settings.items()}
    shown = {
        "source": rows["source"],
        "kind": [kinds.get(name, "-") for name in rows["source"]],
        "answers": rows["answers"],
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
        "seconds": [_known(value) for value in rows["seconds"]],
        "slowest": [_known(value) for value in rows["slowest"]],
        "audits": [
            _audits(a, f) for a, f in zip(rows["audits"], rows["audits_failed"], strict=True)
        ],
        "gap": [_known(value) for value in rows["gap"]],
    }
    return pd.DataFrame(shown)


def _known(value: float | None) -> str:
    return number(None if pd.isna(value) else value)


def _audits(number_of: int, failed: int) -> str:
    return f"{count(number_of)} ({count(failed)} failed)" if failed else count(number_of)


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
    if not names:
        panels.card("Waiting for a score", None, metric_caption(("rewards/NAME/queue",)))
        return
    panels.metric_card(
        run,
        "Waiting for a score",
        names,
        "wall",
        samples=True,
        caption=metric_caption(("rewards/NAME/queue",)),
    )


def _scatter(run: RunData) -> None:
    rows = run.reward_lengths()
    panels.card(
        "Length against reward",
        None if rows.empty else scatter_chart(rows),
        "Each point is one of the newest answers; equal rewards are spread a little. Healthy: no "
        "slope that grows while answers get longer.",
        note="" if rows.empty else f"{count(len(rows))} answers",
        wait=panels.awaited(run, "the first reward"),
    )
