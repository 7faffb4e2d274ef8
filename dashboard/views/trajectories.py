"""Trajectories: find them, read them token by token, see their siblings."""

import json
import zlib
from functools import partial
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
from storage.queries import TrajectoryDetail

ROWS = 100
SIBLINGS = 8
"""Buttons in a row."""
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
    "shortest": ("length", False),
    "best": ("reward", True),
    "worst": ("reward", False),
}
TRAJECTORY = "trajectory"
"""The chosen trajectory's id, in the session and in the address."""
_LONGEST_ID = 18
"""Digits."""


def render(run: RunData, root: Path) -> None:
    """Draw the page. It is not redrawn by itself, because the reader would lose the place."""
    with st.container(horizontal=True, vertical_alignment="center"):
        panels.title(run, "Trajectories")
        if is_live(run.line):
            st.button("Refresh", icon=":material/refresh:")
    wanted = _wanted(run)
    total = run.page(**wanted, limit=0).total
    if not total:
        if run.summary()["trajectories"]["issued"]:
            panels.empty("No trajectory matches.")
        else:
            panels.empty(panels.awaited(run, "the first trajectory"))
            panels.wait_for_change(run)
            return
    first = _rows(run, wanted, total) if total else None
    asked = st.session_state.get(TRAJECTORY) or ""
    chosen = trajectory_id(asked) if asked else first
    if chosen is not None:
        _read_or_say(run, chosen)
    elif asked:
        panels.empty(f"There is no trajectory {asked[:40]!r}: ids are whole numbers from 0 on.")


def trajectory_id(text: str) -> int | None:
    """The id that somebody wrote; None where no trajectory can have it."""
    plain = text.strip()
    if not (plain.isascii() and plain.isdecimal() and len(plain) <= _LONGEST_ID):
        return None
    return int(plain)


def _wanted(run: RunData) -> dict[str, Any]:
    """The filter bar: what of `queries.trajectory_page` is asked for. All of it is in the
    address."""
    bound: dict[str, Any] = {"bind": "query-params"}
    with panels.filters():
        top = st.columns([3, 1.3, 2.4, 1.3, 1.2])
        text = top[0].text_input("Search", placeholder="any text", key="search", **bound)
        place = top[1].selectbox("in", ["prompt", "response"], key="search_place", **bound)
        statuses = top[2].multiselect(
            "Status", STATUSES, key="statuses", placeholder="any", **bound
        )
        sort = top[3].selectbox("Sort by", list(SORTS), key="sort", **bound)
        top[4].text_input("Trajectory", placeholder="id", key=TRAJECTORY, **bound)
        low = st.columns(5)
        least_reward = low[0].number_input("Reward from", value=None, key="reward_from", **bound)
        most_reward = low[1].number_input("to", value=None, key="reward_to", **bound)
        least_length = low[2].number_input(
            "Length from", value=None, step=10, key="length_from", **bound
        )
        most_length = low[3].number_input("to", value=None, step=10, key="length_to", **bound)
        update = low[4].number_input(
            "Trained at update", value=None, step=1, key="at_update", **bound
        )
    where = range_filter("reward", least_reward, most_reward) + range_filter(
        "length", least_length, most_length
    )
    filters: dict[str, Any] = {"purpose": "train"}
    if statuses:
        filters["status"] = statuses
    if text and place == "response":
        filters["trajectory_id"] = run.search(text)
    column, descending = SORTS[sort or "newest"]
    return {
        "where": " and ".join(where) or None,
        "filters": filters,
        "search": text if text and place == "prompt" else None,
        "update": None if update is None else int(update),
        "sort": column,
        "descending": descending,
    }


def range_filter(column: str, least: float | None, most: float | None) -> list[str]:
    """Conditions of the filter language."""
    ends = ((">=", least), ("<=", most))
    return [f"{column} {sign} {_plain(value)}" for sign, value in ends if value is not None]


def _plain(value: float) -> str:
    """A number with all its digits and no exponent."""
    return f"{value:.12f}".rstrip("0").rstrip(".")


def _rows(run: RunData, wanted: dict[str, Any], total: int) -> int:
    """The table, a page of it at a time; returns the trajectory to read where none is chosen."""
    table, foot = st.container(), st.container(horizontal=True, horizontal_alignment="right")
    pages = -(-total // ROWS)
    page = foot.pagination(pages, key="page", bind="query-params") if pages > 1 else 1
    page = min(page, pages)
    first = (page - 1) * ROWS
    rows = run.page(**wanted, limit=ROWS, offset=first).rows
    ids = [int(key) for key in rows["trajectory_id"]]
    shown = f"{count(first + 1)} to {count(first + len(ids))} of {count(total)} trajectories"
    table.caption(
        f"{shown}. Choose a row to read it. Sort by orders all of them; a click on the head of a "
        "column orders only the rows shown."
    )
    # A table of other rows is another table: a choice must never move to a row that it was not
    # made for.
    key = f"trajectories_{zlib.crc32(repr(ids).encode())}"
    asked = trajectory_id(st.session_state.get(TRAJECTORY) or "")
    table.dataframe(
        rows[COLUMNS],
        hide_index=True,
        width="stretch",
        height=38 + 35 * min(len(rows), 7),
        on_select=partial(_picked, key, ids),
        selection_mode="single-row",
        selection_default={"selection": {"rows": [ids.index(asked)] if asked in ids else []}},
        key=key,
        column_config={
            "trajectory_id": st.column_config.NumberColumn("id", format="%d", width="small"),
            "group_id": st.column_config.NumberColumn("group", format="%d", width="small"),
            "min_version": st.column_config.NumberColumn("first weights"),
            "max_version": st.column_config.NumberColumn("last weights"),
            "prompt": st.column_config.TextColumn(width="large"),
        },
    )
    return worth_reading(rows)


def _picked(key: str, ids: list[int]) -> None:
    """A row was chosen."""
    rows = st.session_state[key]["selection"]["rows"]
    if rows:
        st.session_state[TRAJECTORY] = str(ids[rows[0]])


def worth_reading(rows: pd.DataFrame) -> int:
    """The first trajectory that has ended and has tokens; else the first with tokens; else the
    first."""
    some = rows[rows["length"] > 0]
    whole = some[some["status"].isin(["finished", "truncated"])]
    best = next(found for found in (whole, some, rows) if len(found))
    return int(best["trajectory_id"].iloc[0])


def _read_or_say(run: RunData, chosen: int) -> None:
    try:
        detail = run.trajectory(chosen)
    except UserError as error:
        panels.empty(str(error))
        return
    _read(detail)


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
    every = rows.to_dict("records")
    for first in range(0, len(every), SIBLINGS):
        columns = st.columns(max(4, min(SIBLINGS, len(every))))
        for column, other in zip(columns, every[first : first + SIBLINGS], strict=False):
            reward = (
                "no reward" if pd.isna(other["reward"]) else f"reward {number(other['reward'])}"
            )
            key = int(other["trajectory_id"])
            column.button(
                f"{key}: {reward}, {other['length']} tokens",
                key=f"sibling_{key}",
                disabled=key == mine,
                width="stretch",
                on_click=_go_to,
                args=(key,),
            )


def _go_to(key: int) -> None:
    st.session_state[TRAJECTORY] = str(key)


def _tokens(detail: TrajectoryDetail) -> None:
    size = len(detail.tokens.token_ids)
    if not size:
        panels.empty("Waits for the first token of this response.")
        return
    chosen = st.segmented_control(
        "Colour by", list(COLOURINGS), default=_default(detail), required=True, key="colour_by",
        bind="query-params",
    )  # fmt: skip
    by = str(chosen)
    first = 0
    if size > MAX_TOKENS:
        starts = list(range(0, size, MAX_TOKENS))
        first = st.select_slider("Tokens from", starts, key="tokens_from", bind="query-params") or 0
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
