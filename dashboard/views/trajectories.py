"""Trajectories: find them, read them token by token, see their siblings."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from dashboard import panels
from dashboard.data import RunData, is_live
from dashboard.figures import token_chart
from dashboard.tokens import (
    COLOURINGS,
    KINDS,
    MAX_TOKENS,
    colour_values,
    prompt_html,
    scale_html,
    token_html,
    window_cuts,
)
from dashboard.words import count, number
from headrace.errors import UserError
from storage.queries import TrajectoryDetail, TrajectoryPage

ROWS = 100
COLUMNS = [
    "trajectory_id",
    "status",
    "reward",
    "length",
    "min_version",
    "max_version",
    "group_id",
    "prompt",
    "answer",
    "generator",
]
STATUSES = ["finished", "truncated", "running", "issued", "failed", "aborted"]
SORTS = {
    "newest": ("trajectory_id", True),
    "oldest": ("trajectory_id", False),
    "longest": ("length", True),
    "best": ("reward", True),
    "worst": ("reward", False),
}
PARAMETER = "trajectory"


def render(run: RunData, root: Path) -> None:
    """Draw the page. It is not redrawn by itself, because the reader would lose the place."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.title("Trajectories")
        if is_live(run.line):
            st.button("Refresh", icon=":material/refresh:")
    page = _filtered(run)
    if not page.total:
        if run.summary()["trajectories"]["issued"]:
            panels.empty("No trajectory matches.")
        else:
            panels.empty(panels.awaited(run, "the first trajectory"))
            panels.wait_for_change(run)
            return
    chosen = _choose(page)
    if chosen is None:
        return
    try:
        detail = run.trajectory(chosen)
    except UserError as error:
        panels.empty(str(error))
        return
    _read(detail)


def _filtered(run: RunData) -> TrajectoryPage:
    """The filter bar, and the rows that pass."""
    with st.container(border=True):
        top = st.columns([3, 1.4, 2.4, 1.4])
        text = top[0].text_input("Search", placeholder="any text", key="search")
        place = top[1].selectbox("in", ["prompt", "response"], key="search_place")
        statuses = top[2].multiselect("Status", STATUSES, key="statuses", placeholder="any")
        sort = top[3].selectbox("Sort by", list(SORTS), key="sort")
        low = st.columns(5)
        least_reward = low[0].number_input("Reward from", value=None, key="reward_from")
        most_reward = low[1].number_input("to", value=None, key="reward_to")
        least_length = low[2].number_input("Length from", value=None, step=10, key="length_from")
        most_length = low[3].number_input("to", value=None, step=10, key="length_to")
        update = low[4].number_input("Trained at update", value=None, step=1, key="at_update")
    where = range_filter("reward", least_reward, most_reward) + range_filter(
        "length", least_length, most_length
    )
    filters: dict[str, Any] = {"purpose": "train"}
    if statuses:
        filters["status"] = statuses
    if text and place == "response":
        filters["trajectory_id"] = run.search(text)[:500]
    column, descending = SORTS[sort or "newest"]
    return run.page(
        where=" and ".join(where) or None,
        filters=filters,
        search=text if text and place == "prompt" else None,
        update=None if update is None else int(update),
        sort=column,
        descending=descending,
        limit=ROWS,
    )


def range_filter(column: str, least: float | None, most: float | None) -> list[str]:
    """Conditions of the filter language."""
    ends = ((">=", least), ("<=", most))
    return [f"{column} {sign} {value:g}" for sign, value in ends if value is not None]


def _choose(page: TrajectoryPage) -> int | None:
    """The table; the row that is chosen, else the one in the page's address, else the first."""
    rows = page.rows
    shown = f"{count(min(len(rows), ROWS))} of {count(page.total)} trajectories"
    st.caption(f"{shown}. Choose a row to read it." if page.total else shown)
    picked: list[int] = []
    if len(rows):
        state = st.dataframe(
            rows[COLUMNS],
            hide_index=True,
            width="stretch",
            height=38 + 35 * min(len(rows), 7),
            on_select="rerun",
            selection_mode="single-row",
            key="trajectory_table",
            column_config={
                "trajectory_id": st.column_config.NumberColumn("id", format="%d", width="small"),
                "group_id": st.column_config.NumberColumn("group", format="%d", width="small"),
                "min_version": st.column_config.NumberColumn("first weights"),
                "max_version": st.column_config.NumberColumn("last weights"),
                "prompt": st.column_config.TextColumn(width="large"),
            },
        )
        picked = list(state["selection"]["rows"])
    if picked and picked[0] < len(rows):
        chosen = int(rows["trajectory_id"].iloc[picked[0]])
        if st.session_state.get("table_choice") != chosen:
            st.session_state["table_choice"] = chosen
            st.query_params[PARAMETER] = str(chosen)
    asked = st.query_params.get(PARAMETER, "")
    if asked.isdecimal():
        return int(asked)
    return int(rows["trajectory_id"].iloc[0]) if len(rows) else None


def _read(detail: TrajectoryDetail) -> None:
    row = detail.row
    with st.container(border=True):
        st.html(f"<b>Trajectory {row['trajectory_id']}</b>")
        _facts(detail)
        _siblings(detail)
        st.html(prompt_html(row["prompt"]))
        _tokens(detail)
        with st.expander("Windows, reward parts and times"):
            st.dataframe(detail.windows, hide_index=True, width="stretch")
            times = {key: value for key, value in row.items() if key not in ("prompt", "info")}
            rewards = [{"value": value, "position": at} for value, at in detail.rewards]
            st.json(
                {
                    "row": times,
                    "parts": detail.reward_parts,
                    "rewards": rewards,
                    "info": _json(row["info"]),
                }
            )


def _facts(detail: TrajectoryDetail) -> None:
    row = detail.row
    columns = st.columns(5)
    reward = number(row["reward"]) if row["reward"] is not None else "none yet"
    source = f"by {row['reward_source']}" if row["reward_source"] not in (None, "default") else None
    columns[0].metric("Reward", reward, source, delta_color="off", delta_arrow="off")
    inserted = f"{count(row['inserted'])} of them inserted" if row["inserted"] else None
    length = f"{count(row['length'])} tokens"
    columns[1].metric("Length", length, inserted, delta_color="off", delta_arrow="off")
    columns[2].metric("Status", row["status"])
    columns[3].metric("Weights", f"{number(row['min_version'])} to {number(row['max_version'])}")
    columns[4].metric("Expected answer", row["answer"] or "-")
    if row["audit_status"] is not None:
        said = number(row["audit_reward"]) if row["audit_status"] == "ok" else row["audit_status"]
        st.caption(f"Audited by {row['audit_source']}: {said}. Nothing trains on that.")


def _siblings(detail: TrajectoryDetail) -> None:
    """The group's other trajectories, one click away."""
    rows = detail.siblings
    if len(rows) < 2:
        return
    mine = detail.row["trajectory_id"]
    st.caption(f"Group {detail.row['group_id']}: {len(rows)} answers to this prompt")
    for column, other in zip(
        st.columns(max(4, min(8, len(rows)))), rows.head(8).to_dict("records"), strict=False
    ):
        reward = "no reward" if pd.isna(other["reward"]) else f"reward {number(other['reward'])}"
        label = f"{other['trajectory_id']}: {reward}, {other['length']} tokens"
        key = int(other["trajectory_id"])
        if column.button(label, key=f"sibling_{key}", disabled=key == mine, width="stretch"):
            st.query_params[PARAMETER] = str(key)
            st.rerun()


def _tokens(detail: TrajectoryDetail) -> None:
    size = len(detail.tokens.token_ids)
    if not size:
        panels.empty("Waits for the first token of this response.")
        return
    chosen = st.segmented_control(
        "Colour by", list(COLOURINGS), default=_default(detail), required=True, key="colour_by"
    )
    by = str(chosen)
    first = 0
    if size > MAX_TOKENS:
        starts = list(range(0, size, MAX_TOKENS))
        first = st.select_slider("Tokens from", starts, key="tokens_from") or 0
    if detail.pieces is None:
        st.caption("The model's tokenizer was not found: token ids are shown.")
    st.html(scale_html(detail, by))
    st.html(token_html(detail, by, first))
    st.caption(
        f"{COLOURINGS[by]} Pink marks begin a window; dotted tokens were left out of the loss. "
        "Point at a token for its numbers."
    )
    if by not in KINDS:
        values = colour_values(detail, by)
        frame = pd.DataFrame({"position": range(size), by: values}).dropna()
        if len(frame) > 1:
            step = -(-len(frame) // 1500)
            cuts = [cut.position for cut in window_cuts(detail) if cut.position]
            st.altair_chart(token_chart(frame.iloc[::step], by, cuts), width="stretch")


def _default(detail: TrajectoryDetail) -> str:
    """The quantity that colours tokens at first: advantages where an update has trained the
    response, else logprobs."""
    return "advantage" if (detail.tokens.trained_at_update >= 0).any() else "logprob"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
