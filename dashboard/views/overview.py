"""Overview: how the run stands, what it has learned, where every token went."""

from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.components import panels
from dashboard.components.alert_list import CAPTION, alerts_html, event_html, event_rows
from dashboard.components.tokens import prompt_html
from dashboard.formatting import (
    answers_address,
    count,
    duration,
    link_html,
    number,
    progress,
    share,
)
from dashboard.reads import data
from dashboard.reads.data import RunData
from dashboard.reads.ledger import ledger_html
from dashboard.views.health import processes, snapshot
from headrace.config.sections.reward import RewardConfig
from storage import queries
from storage.queries import UNREADABLE

_ENDED = {
    "crashed": "raised, or its process died,",
    "timeout": "did not answer in time",
    "invalid": "gave something that is no score",
}


@panels.repainted
def render(run: RunData) -> None:
    """The page."""
    summary = run.summary()
    _headline(run, summary)
    failed = run.line.detail if run.line.status == "failed" else ""
    if " in a row failed" in failed and " episodes in a row failed" not in failed:
        _failed_scorings(run)
    _figures(summary)
    _alerts(run)
    with panels.framed("The token ledger"):
        st.html(ledger_html(summary["tokens"]))
        st.caption(
            "Every response token that was journaled, each counted once: in the policy loss of a "
            "committed update (trained), complete and waiting for one (ready), in a window that is "
            "not complete or waits for its reward (in flight), or left out for a reason (dropped)."
        )
    panels.grid(
        [
            partial(panels.accuracy_card, run),
            partial(panels.metric_card, run, "Reward", ("reward/mean",)),
            partial(panels.metric_card, run, "Response length", ("response_length/mean",)),
        ],
        columns=3,
    )
    left, right = st.columns(2)
    with left, panels.framed("Processes", height="stretch"):
        processes(run, run.fresh(queries.process_health), snapshot(run))
    with right:
        _events(run)
    _others(run.line.run_dir.parent)


def _headline(run: RunData, summary: dict[str, Any]) -> None:
    what = run.line.kind if run.line.kind != "training" else summary["mode"]
    facts = [what, f"seed {summary['seed']}", duration(summary["wall_s"])]
    if summary["lineage"]:
        facts.append(f"lineage {summary['lineage']}")
    if summary["ended"] and summary["status"] == "finished":
        facts.append(f"ended: {summary['ended']}")
    panels.headline(summary, facts)
    found = progress(summary, run.config()["stop"]) if run.line.kind == "training" else None
    if found is not None:
        done = 1.0 if summary["status"] == "finished" else found[0]
        st.progress(done, text=found[1])


def _failed_scorings(run: RunData) -> None:
    """Show the reward function that most often gave no score, of a run that failed by that.

    With what it said, an answer that it said it of, and what to do."""
    failures = run.read(queries.reward_failures)
    if not failures:
        return
    worst, name = failures[0], run.line.run_dir.name
    detail = run.trajectory(worst.trajectory_id)
    history = run.read(queries.prompt_history, detail.row["prompt_id"])
    history = history.set_index("trajectory_id")
    evaluation = history["evaluation"].get(worst.trajectory_id)
    number_of = None if pd.isna(evaluation) else int(evaluation)
    answers = panels.answers_name(number_of, detail.row["purpose"])
    source = RewardConfig.model_validate(run.config()["reward"]).each().get(worst.source)
    scorer = worst.source if source is None else ", ".join(source.names()) or source.kind
    failed = {"answers": answers, "scores": worst.status, "sources": worst.source}
    every = answers_address(name, **failed)
    one = answers_address(name, **failed, trajectory=worst.trajectory_id)
    said = "(no tokenizer)" if detail.text is None else detail.text or "(an empty answer)"
    with panels.framed("The reward function gave no score"):
        st.html(
            f"<p><b>{escape(scorer)}</b> {_ENDED.get(worst.status, worst.status)} on "
            f"{link_html(every, f'{count(worst.number)} answers')}. Of "
            f"{link_html(one, f'answer {worst.trajectory_id}')} it said:</p>"
            f'<pre class="hr-stack">{escape(detail.row["reward_error"] or "")}</pre>'
            f"{prompt_html(detail.row['prompt'])}{prompt_html(said)}"
        )
        st.caption(
            "Mend the function, and try it on answers without a run: `headrace reward try RECIPE "
            f"ANSWERS.jsonl`; `headrace export {name} trajectories --out ANSWERS.jsonl` has these "
            "answers. Then `headrace train` begins anew, or `--resume` goes on from a checkpoint."
        )


def _figures(summary: dict[str, Any]) -> None:
    """The five numbers that matter; deltas are against the evaluation before training."""
    rows = summary["evaluations"]
    last = rows[-1] if rows else {}
    first = rows[0] if len(rows) > 1 and rows[0]["label"] == "before" else {}
    accuracy, length = last.get("accuracy"), last.get("response_length")
    if first and accuracy is not None:
        change: str | None = f"{100 * (accuracy - first['accuracy']):+.1f} points"
    else:
        change = f"{last['label']} training" if last else None
    before = f"; {share(first['accuracy'])} before training" if first else ""
    grown = (
        f"x {length / first['response_length']:.2f}"
        if first and length and first["response_length"]
        else None
    )
    accuracy_card, length_card, updates, tokens, staleness = st.columns(5)
    framed: dict[str, Any] = {"border": True, "height": "stretch"}
    plain = framed | {"delta_color": "off", "delta_arrow": "off"}
    accuracy_card.metric(
        "Held-out accuracy",
        share(accuracy),
        change,
        delta_color="normal" if first else "off",
        delta_arrow="auto" if first else "off",
        help=f"share of held-out prompts answered correctly{before}",
        **framed,
    )
    meaning = "mean, in tokens, in the held-out evaluations"
    length_card.metric("Response length", number(length), grown, help=meaning, **plain)
    skipped = f"{summary['skipped_updates']} skipped" if summary["skipped_updates"] else None
    updates.metric("Updates", count(summary["updates"]), skipped, **plain)
    generated = f"{count(summary['tokens']['generated'])} generated"
    tokens.metric("Tokens trained", count(summary["tokens"]["trained_policy"]), generated, **plain)
    staleness.metric(
        "Mean staleness",
        number(summary["staleness"]["mean"]),
        f"{number(summary['staleness']['max'])} at most",
        help="updates between the sampling of a token and its training",
        **plain,
    )


def _alerts(run: RunData) -> None:
    """Those that last; the page Health has the others too."""
    standing = [alert for alert in run.alerts() if alert.now]
    if standing:
        with panels.framed("Alerts"):
            st.html(alerts_html(standing, run.line.run_dir.name))
            st.caption(CAPTION)


def _events(run: RunData) -> None:
    rows = run.fresh(queries.events, limit=24)
    with panels.framed("What happened", height="stretch"):
        if rows.empty:
            panels.empty("Nothing so far.")
            return
        newest = rows.head(9).itertuples()
        st.html("".join(event_html(row) for row in newest))
        with st.expander("more"):
            panels.table(event_rows(rows), "Events")


def _others(root: Path) -> None:
    """Number of runs, with a link to them."""
    lines = [line for line in data.runs(str(root)) if not line.notes.archived]
    broken = sum(line.status == UNREADABLE for line in lines)
    said = "1 run" if len(lines) == 1 else f"{count(len(lines))} runs"
    unreadable = f" ({count(broken)} cannot be read)" if broken else ""
    link = f'<a href="runs">{said}</a>{unreadable}'
    st.html(f'<div class="hr-soft">{link} under {escape(str(root))}</div>')
