"""Trajectories: find them; `views.answer` reads the one that is chosen."""

import zlib
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.components import panels
from dashboard.components.panels import ABOVE, BELOW, BOUND, FREE, PAID_LESS, PAID_MORE, SOME, SURE
from dashboard.formatting import count, without_template
from dashboard.reads.data import RunData, is_live
from dashboard.reads.images import thumbnail
from dashboard.views.answer import TRAJECTORY, read_or_say
from storage import queries
from storage.queries import SCORES, RowPage

ROWS = 100
ANY: dict[str, Any] = {"index": None, **SOME}
COLUMNS = [
    "trajectory_id",
    "status",
    "reward",
    "length",
    "surprise",
    "gap",
    "min_version",
    "max_version",
    "group_id",
    "prompt",
    "begins",
    "answer",
    "generator",
    "reward_model",
]
_RARE = ("gap", "reward_model")
"""Columns that are shown where a row has something there."""
STATUSES = ["finished", "truncated", "running", "issued", "failed", "aborted"]
SORTS = {
    "newest": ("trajectory_id", True),
    "oldest": ("trajectory_id", False),
    "longest": ("length", True),
    "shortest": ("length", False),
    "best": ("reward", True),
    "worst": ("reward", False),
    ABOVE: ("gap", True),
    BELOW: ("gap", False),
    "surprising": ("surprise", True),
    SURE: ("surprise", False),
    "scored last": ("rewarded_at", True),
}
VERDICTS = {
    "right": "correct",
    "wrong": "(not correct or correct is null and (status = 'failed' or "
    "reward_status is not null))",
}
AUDITS = {
    PAID_MORE: "gap > 0",
    PAID_LESS: "gap < 0",
    "paid the same": "gap = 0",
    "audited": "audit_status = 'ok'",
    "failed": "audit_status <> 'ok'",
    "not audited": "audit_status is null",
}
"""What the audit said of a reward, and the condition of that."""
_LONGEST_ID = 18
"""Digits."""


def render(run: RunData) -> None:
    """Draw the page. It is not redrawn by itself, because the reader would lose the place."""
    panels.live(run, _body, follows=False)


def _body(run: RunData) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        panels.title(run, "Trajectories")
        if is_live(run.line):
            st.button("Refresh", icon=":material/refresh:")
    purpose, evaluation = panels.choose_answers(run, along=True)
    kinds = {"purpose": purpose}
    wanted = _wanted(run, kinds) | {"evaluation": evaluation}
    top = run.page(**wanted, limit=ROWS)
    if not top.total:
        if run.page(filters=kinds, evaluation=evaluation, limit=0).total:
            panels.empty("No trajectory matches.")
        else:
            panels.empty(panels.awaited(run, "the first trajectory"))
            panels.wait_for_change(run)
            return
    first = _rows(run, wanted, top) if top.total else None
    asked = st.session_state.get(TRAJECTORY) or ""
    chosen = trajectory_id(asked) if asked else first
    if chosen is not None:
        read_or_say(run, chosen)
    elif asked:
        panels.empty(f"There is no trajectory {asked[:40]!r}: ids are whole numbers from 0 on.")


def trajectory_id(text: str) -> int | None:
    """The id that somebody wrote; None where no trajectory can have it."""
    plain = text.strip()
    if not (plain.isascii() and plain.isdecimal() and len(plain) <= _LONGEST_ID):
        return None
    return int(plain)


def _wanted(run: RunData, kinds: dict[str, Any]) -> dict[str, Any]:
    """The filter bar: what `RunData.page` is asked for of answers of these kinds. All of it is in
    the address."""
    reward = run.config()["reward"]
    with panels.filters():
        top = st.columns([3, 1.3, 2.4, 1.3, 1.2])
        text = top[0].text_input("Search", placeholder="any text", key="search", **BOUND)
        place = top[1].selectbox("Search in", ["prompt", "response"], key="search_place", **BOUND)
        statuses = top[2].multiselect("Status", STATUSES, key="statuses", **SOME)
        sort = top[3].selectbox("Sort by", list(SORTS), key="sort", **BOUND)
        top[4].text_input("Trajectory", placeholder="id", key=TRAJECTORY, **BOUND)
        scoring = st.columns(5 if reward.get("sources") else 4)
        verdict = scoring[0].selectbox("Verdict", VERDICTS, key="verdict", **ANY)
        scores = scoring[1].multiselect("Scoring", SCORES, key="scores", **SOME)
        audit = scoring[2].selectbox("Audit", AUDITS, key="audit", **ANY)
        newest = scoring[3].number_input(
            "The last to be scored", min_value=1, step=10, key="newest", placeholder="all", **FREE
        )  # fmt: skip
        sources = (
            scoring[4].multiselect("Source", list(reward["sources"]), key="sources", **SOME)
            if reward.get("sources")
            else []
        )
        low = st.columns(8)
        least_reward = low[0].number_input("Reward from", key="reward_from", **FREE)
        most_reward = low[1].number_input("Reward to", key="reward_to", **FREE)
        least_length = low[2].number_input("Length from", step=10, key="length_from", **FREE)
        most_length = low[3].number_input("Length to", step=10, key="length_to", **FREE)
        update = low[4].number_input("Trained at update", step=1, key="at_update", **FREE)
        last = low[5].number_input("to update", step=1, key="to_update", **FREE)
        began = low[6].number_input("Scored from (s)", key="scored_from", **FREE)
        ended = low[7].number_input("to (s)", key="scored_to", **FREE)
    started = run.line.started_at or 0.0
    where = [
        *range_filter("reward", least_reward, most_reward),
        *range_filter("length", least_length, most_length),
        *range_filter("rewarded_at", *(None if t is None else started + t for t in (began, ended))),
        *([VERDICTS[verdict]] if verdict else []),
        *([AUDITS[audit]] if audit else []),
    ]
    chosen = {"status": statuses, "reward_status": scores, "reward_source": sources}
    column, descending = SORTS[sort or "newest"]
    return {
        "where": " and ".join(where) or None,
        "filters": kinds | {name: values for name, values in chosen.items() if values},
        "search": text if text and place == "prompt" else None,
        "response": text if text and place == "response" else "",
        "updates": None if update is last is None else (int(update or 0), int(last or update or 0)),
        "newest": None if newest is None else int(newest),
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


def _rows(run: RunData, wanted: dict[str, Any], top: RowPage) -> int | None:
    """The table, a page of it at a time, of which `top` is the first; returns the trajectory to
    read where none is chosen."""
    table, foot = st.container(), st.container(horizontal=True, horizontal_alignment="right")
    pages = -(-top.total // ROWS)
    page = foot.pagination(pages, key="page", bind="query-params") if pages > 1 else 1
    page = min(page, pages)
    first = (page - 1) * ROWS
    rows = run.page(**wanted, limit=ROWS, offset=first).rows if first else top.rows
    ids = [int(key) for key in rows["trajectory_id"]]
    said = f"{count(first + 1)} to {count(first + len(ids))} of {count(top.total)} trajectories"
    table.caption(
        f"{said}. Choose a row to read it. Sort by orders all of them; a click on the head of a "
        "column orders only the rows shown."
    )
    # A table of other rows is another table: a choice must never move to a row that it was not
    # made for.
    key = f"trajectories_{zlib.crc32(repr(ids).encode())}"
    asked = trajectory_id(st.session_state.get(TRAJECTORY) or "")
    began = run.read(queries.beginnings, tuple(ids))
    rows = rows.assign(
        prompt=without_template(list(rows["prompt"])), begins=[began.get(key, "-") for key in ids]
    )
    columns = [name for name in COLUMNS if name not in _RARE or rows[name].notna().any()]
    if files := run.read(queries.prompt_images, tuple(rows["prompt_id"].unique())):
        small = {prompt: thumbnail(every[0]) for prompt, every in files.items()}
        rows = rows.assign(image=rows["prompt_id"].map(small))
        columns.insert(columns.index("prompt"), "image")
    table.dataframe(
        rows[columns],
        hide_index=True,
        width="stretch",
        height=38 + 35 * min(len(rows), 7),
        on_select=partial(_picked, key, ids),
        selection_mode="single-row",
        selection_default={"selection": {"rows": [ids.index(asked)] if asked in ids else []}},
        key=key,
        placeholder="-",
        alt="Trajectories",
        column_config={
            "trajectory_id": st.column_config.NumberColumn("id", format="%d", width="small"),
            "group_id": st.column_config.NumberColumn("group", format="%d", width="small"),
            "reward": st.column_config.NumberColumn(format="%.3g"),
            "surprise": st.column_config.NumberColumn(
                format="%.3g", help="mean negative logprob of its tokens, nats"
            ),
            "gap": st.column_config.NumberColumn(
                "above audit", format="%.3g", help="reward less audited reward"
            ),
            "min_version": st.column_config.NumberColumn("first weights"),
            "max_version": st.column_config.NumberColumn("last weights"),
            "image": st.column_config.ImageColumn(width="small"),
            "prompt": st.column_config.TextColumn(width="medium"),
            "begins": st.column_config.TextColumn("answer begins", width="medium"),
            "answer": st.column_config.TextColumn("right answer"),
        },
    )
    return worth_reading(rows)


def _picked(key: str, ids: list[int]) -> None:
    """A row was chosen."""
    rows = st.session_state[key]["selection"]["rows"]
    if rows:
        st.session_state[TRAJECTORY] = str(ids[rows[0]])


def worth_reading(rows: pd.DataFrame) -> int | None:
    """The first trajectory that has ended and has tokens; else the first with tokens; else the
    first. None: since the page was counted, none of its answers matches any more."""
    some = rows[rows["length"] > 0]
    whole = some[some["status"].isin(["finished", "truncated"])]
    every = (key for found in (whole, some, rows) for key in found["trajectory_id"])
    return next((int(key) for key in every), None)
