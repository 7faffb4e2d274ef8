"""Dropped: every token that was generated and not trained, with the reason.

Reasons with their tokens and what they mean, losses by the length of answers, and each window or
trajectory that lost tokens.
"""

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.dropped_tokens import losses_chart
from dashboard.components import panels
from dashboard.components.panels import BOUND, FREE, SOME
from dashboard.formatting import answers_address, bars_html, count, number, reason_name, share
from dashboard.palette import ORANGE
from dashboard.reads.data import RunData, is_live
from headrace.errors import moment
from headrace.metrics.registry import METRICS
from storage import queries

ROWS = 100
ORDERS = ("newest", "most tokens", "longest")
HELPS = {
    "boundary_mask": "Meant so: the end of a window that was cut has no sound advantage yet.",
    "discarded_at_end": "Meant so: what was under way when the run ended by itself. A run that is "
    "stopped keeps it for its resume.",
    "filtered": "Meant so with dynamic sampling: groups whose answers all earned the same teach "
    "nothing.",
    "non_finite": "Look at the events on the overview: they name the generator and its weights.",
    "overlong": "Meant so: algorithm.overlong.filter leaves answers out that hit the limit. A "
    "larger task.max_response_length loses fewer.",
    "reward_failed": "Look at the failures on the page Rewards; of episodes, on Environments.",
    "stale": "A smaller schedule.window, a larger schedule.max_staleness, or schedule.stale = "
    '"wait" loses fewer.',
    "value_warmup": "Meant so: algorithm.value.warmup_updates updates train the value model alone.",
    "zero_weight": "Meant so: their loss weight is 0.",
}
"""What to make of a reason, and what to do about it."""


def render(run: RunData) -> None:
    """Draw the page. The rows are not drawn again by themselves, because the reader would lose the
    place; the rest is."""
    panels.live(run, _body)
    if run.dropped():
        panels.live(run, _rows, follows=False)


def _body(run: RunData) -> None:
    panels.title(run, "Dropped")
    counts, tokens = run.dropped(), run.summary()["tokens"]
    if not counts:
        panels.empty(
            "No token was dropped." if tokens["generated"] else panels.awaited(run, "tokens")
        )
        return
    with panels.framed("Why tokens were not trained"):
        st.html(reasons_html(counts, tokens["generated"]))
        # What was lost, or SQL lacks the end of, ends behind its last sample.
        is_open = is_live(run.line) or run.line.status == "lost" or run.line.sql != ""
        st.html(verdict_html(counts, tokens["dropped"], live=is_open))
    panels.grid(
        [
            partial(_by_length, run),
            partial(
                panels.metric_card,
                run,
                "Dropped so far",
                [f"ledger/dropped/{reason}" for reason in counts],
                "wall",
                samples=True,
                caption="Tokens dropped by then, by reason.",
            ),
        ]
    )


def _by_length(run: RunData) -> None:
    frame = run.throttled(queries.losses_by_length)
    reasons = [name for name in frame.columns if name not in ("longest", "tokens")]
    panels.frame_card(
        "Losses by length of the answer",
        losses_chart,
        frame if reasons else frame[:0],
        reasons,
        caption="Answers that ended, in ten parts of as many each, the shortest first; answers of "
        "the value model's warm-up apart. Share of their tokens that was not trained, by reason. "
        "Healthy: long answers lose no larger share than short ones, or the policy learns to be "
        "brief.",
        wait=panels.awaited(run, "the first answer that lost tokens"),
    )


def reasons_html(counts: dict[str, int], generated: int) -> str:
    """A row a reason: its tokens as a bar, what it means, what to make of it."""
    return bars_html(
        [
            (reason_name(reason), tokens, _part(tokens, generated), ORANGE, _meaning(reason))
            for reason, tokens in sorted(counts.items(), key=lambda item: -item[1])
        ]
    )


def _part(tokens: int, generated: int) -> str:
    """Of all generated tokens."""
    if generated and 0 < tokens / generated < 0.0005:
        return "&lt; 0.1 %"
    return share(tokens / generated if generated else None)


def _meaning(reason: str) -> str:
    info = METRICS.get(f"ledger/dropped/{reason}")
    said = f"Tokens {info.meaning}. " if info else ""
    return said + HELPS.get(reason, "")


def verdict_html(counts: dict[str, int], ledger: dict[str, int], *, live: bool) -> str:
    """Verdict whether the windows agree with the ledger to the token."""
    known = {reason: tokens for reason, tokens in ledger.items() if tokens}
    total, said = sum(counts.values()), sum(known.values())
    if counts == known:
        return (
            f'<span class="hr-ok">\u2713 {count(total)} tokens, as the ledger counts them, '
            "reason by reason</span>"
        )
    if live:
        return (
            f'<span class="hr-soft">{count(total)} tokens by now; the newest sample of the ledger '
            f"has {count(said)}</span>"
        )
    return (
        f'<span class="hr-bad">! {count(total)} tokens here, {count(said)} in the ledger: '
        "`headrace audit` says where they differ</span>"
    )


def _rows(run: RunData) -> None:
    with st.container(border=True):
        if is_live(run.line):
            st.button("Refresh", icon=":material/refresh:")
        bar = panels.filters(border=False).columns([1.6, 3, 1.5, 1.2, 1.2])
        with bar[0]:
            by = panels.one_of("Rows", ["window", "trajectory"], "window", key="by")
        reasons = bar[1].multiselect(
            "Reasons", list(run.dropped()), key="reasons", format_func=reason_name, **SOME
        )
        order = bar[2].selectbox("Sort by", ORDERS, key="order", **BOUND)
        least = bar[3].number_input("Length from", step=10, key="from", **FREE)
        most = bar[4].number_input("Length to", step=10, key="to", **FREE)
        wanted = {
            "by": by,
            "reasons": reasons,
            "order": order,
            "lengths": (None if least is None else int(least), None if most is None else int(most)),
        }
        table, foot = st.container(), st.container(horizontal=True, horizontal_alignment="right")
        top = run.read(queries.dropped_page, **wanted, limit=ROWS)
        total, pages = top.total, max(1, -(-top.total // ROWS))
        page = foot.pagination(pages, key="rows_page", **BOUND) if pages > 1 else 1
        first = (page - 1) * ROWS
        found = run.read(queries.dropped_page, **wanted, limit=ROWS, offset=first) if first else top
        rows = found.rows
        if not total:
            table.caption("Nothing matches.")
            return
        what = "windows" if wanted["by"] == "window" else "trajectories"
        table.caption(
            f"{count(first + 1)} to {count(first + len(rows))} of {count(total)} {what} that lost "
            "tokens. A trajectory's number opens it, with its cuts and every token."
        )
        table.dataframe(
            shown(rows, run.line.run_dir.name),
            hide_index=True,
            width="stretch",
            height=38 + 35 * min(len(rows), 12),
            alt=f"{what} that lost tokens",
            column_config={
                "trajectory": st.column_config.LinkColumn(
                    display_text=r"trajectory=(\d+)", width="small"
                ),
                "reasons": st.column_config.TextColumn(width="medium"),
            },
        )


def shown(rows: pd.DataFrame, run: str) -> pd.DataFrame:
    """Rows as the table has them: the trajectory as a link, reasons in words."""
    several = [len(found) > 1 for found in rows["reasons"]]
    words = [
        ", ".join(f"{reason_name(r)} {count(n)}" if many else reason_name(r) for r, n in f.items())
        for f, many in zip(rows["reasons"], several, strict=True)
    ]
    links = [answers_address(run, trajectory=key) for key in rows["trajectory_id"]]
    kept = ["window", "windows", "start", "end", "lost", "of", "update", "status", "length"]
    columns: dict[str, Any] = {"trajectory": links, "reasons": words}
    columns |= {name: rows[name] for name in kept if name in rows}
    if "update" in columns:
        columns["update"] = ["-" if pd.isna(at) else f"{at:.0f}" for at in rows["update"]]
    columns["reward"] = [number(None if pd.isna(value) else value) for value in rows["reward"]]
    if "at" in rows:
        columns["at"] = [moment(at) for at in rows["at"]]
    return pd.DataFrame(columns)
