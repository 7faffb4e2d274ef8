"""One trajectory: its facts, its siblings, every token, and another answer beside it."""

import json
import zlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from dashboard.charts.chart_spec import kept
from dashboard.charts.figures import thinned, token_chart
from dashboard.components import panels, reading, tokens
from dashboard.components.images import images_html, marks_of
from dashboard.components.token_facts import answer_data, answer_json
from dashboard.formatting import count, number, series_words
from dashboard.palette import ANSWER_STYLE
from dashboard.reads.data import RunData
from headrace.config.sections.reward import RewardConfig
from headrace.errors import UserError
from storage import queries
from storage.queries import TrajectoryDetail

cached_difference = st.cache_data(max_entries=16, show_spinner=False)(tokens.difference)
TRAJECTORY = "trajectory"
"""The chosen trajectory's id, in the session and in the address."""
BESIDE = "beside"
"""The same of the one that is read beside it."""
_STATIC = Path(__file__).parents[1] / "static"
_TOKENS = st.components.v2.component(
    "headrace_tokens",
    html='<div class="hr-answer"></div>',
    css=(_STATIC / "tokens.css").read_text(encoding="utf-8"),
    js=(_STATIC / "tokens.js").read_text(encoding="utf-8"),
    isolate_styles=False,
)
"""An answer's tokens, chosen by click, touch or keyboard. Its JavaScript gets the response as data
and sets it as text."""
WAYS = {
    "tokens": "Every token with its numbers.",
    "text": "Roles, thoughts folded, code with the parts of the score beside it.",
    "drawn": "The same with Markdown and LaTeX drawn; images and links are taken out.",
    "raw": "The response as it was written, character by character.",
    "requests": "What the policy had before it in each turn, and its reply.",
}
SIBLINGS = 8
"""Buttons in a row."""
POINTS = 1500
"""Most of a quantity along the response."""
_HELP = (
    "Pink marks begin a window, green ones a turn, blue ones tokens of newer weights; dotted "
    "tokens were left out of the loss. Choose a token by click, touch or arrow keys for its "
    "numbers and why it was trained or not; Page Up and Down go to the next mark."
)


def read_or_say(run: RunData, chosen: int) -> None:
    """The trajectory, or that there is none."""
    try:
        detail = run.trajectory(chosen)
    except UserError as error:
        panels.empty(str(error))
        return
    row = detail.row
    st.html(ANSWER_STYLE)
    with panels.framed(f"Trajectory {row['trajectory_id']}"):
        _facts(detail)
        history = run.read(queries.prompt_history, row["prompt_id"])
        _over_updates(detail, history)
        _siblings(detail)
        other = _beside(run, detail, history)
        way = panels.one_of("Read as", WAYS, "tokens", key="read_as") if detail.pieces else "tokens"
        st.caption(WAYS[way])
        if way in ("tokens", "raw"):
            st.html(tokens.prompt_html(row["prompt"]))
        _images(run, detail)
        if way == "tokens":
            _tokens(run, detail, other)
        elif way == "requests":
            _requests(detail)
        else:
            _text(run, detail, other, way)
        # What is folded is drawn when somebody opens it: what shows the code is a large program.
        folded = st.expander("Windows, reward parts and times", on_change="rerun")
        if folded.open:
            with folded:
                _all_known(detail)


def _all_known(detail: TrajectoryDetail) -> None:
    """The windows, with masks as JSON: Arrow has no lists of text beside numbers; and the rest."""
    panels.table(detail.windows.assign(masked=detail.windows["masked"].map(json.dumps)), "Windows")
    row = detail.row
    told = {
        "row": {key: value for key, value in row.items() if key not in ("prompt", "info")},
        "parts": detail.reward_parts,
        "rewards": [{"value": value, "position": at} for value, at in detail.rewards],
        "info": _json(row["info"]),
    }
    st.code(json.dumps(told, indent=1, default=str), language=None)


def _facts(detail: TrajectoryDetail) -> None:
    row = detail.row
    reward = number(row["reward"]) if row["reward"] is not None else "none yet"
    scorer = row["reward_source"] if row["reward_source"] not in (None, "default") else None
    by = [
        text for text in (scorer, row["reward_model"] and f"ranker {row['reward_model']}") if text
    ]
    source = f"by {', '.join(by)}" if by else None
    inserted = f"{count(row['inserted'])} of them inserted" if row["inserted"] else None
    plain: dict[str, Any] = {"delta_color": "off", "delta_arrow": "off", "width": "content"}
    with st.container(horizontal=True, gap="medium"):
        st.metric("Reward", reward, source, **plain)
        st.metric("Tokens", count(row["length"]), inserted, **plain)
        st.metric("Status", row["status"], **plain)
        st.metric(
            "Weights", f"{number(row['min_version'])} to {number(row['max_version'])}", **plain
        )
        st.metric("Expected answer", reading.literal_markdown(row["answer"]) or "-", **plain)
    if row["audit_status"] is not None:
        said = number(row["audit_reward"]) if row["audit_status"] == "ok" else row["audit_status"]
        st.caption(f"Audited by {row['audit_source']}: {said}. Nothing trains on that.")


def _over_updates(detail: TrajectoryDetail, history: pd.DataFrame) -> None:
    """The answers to this prompt over the updates, in training and evaluations, first to last."""
    groups = {int(str(key)): rows for key, rows in history.groupby("group_id")}
    mine = int(detail.row["group_id"])
    if len(groups) < 2 or mine not in groups:
        return
    key = f"prompt_{zlib.crc32(detail.row['prompt_id'].encode())}"
    st.session_state[key] = mine
    words = {group: _group_words(rows) for group, rows in groups.items()}

    def turn() -> None:
        group = groups[st.session_state[key]]
        st.session_state[TRAJECTORY] = str(int(group["trajectory_id"].iloc[0]))

    st.select_slider(
        "This prompt over updates", list(groups), key=key, format_func=words.__getitem__,
        on_change=turn, help="All answers to this prompt, in training and in evaluations.",
    )  # fmt: skip


def _group_words(rows: pd.DataFrame) -> str:
    """Rewards of a group's answers, and when they came."""
    first = rows.iloc[0]
    when = "update -" if pd.isna(first["update"]) else f"update {int(first['update'])}"
    number_of = first["evaluation"]
    where = panels.answers_name(None if pd.isna(number_of) else int(number_of), first["purpose"])
    known = rows["reward"].dropna()
    reward = f"reward {number(float(known.mean()))}" if len(known) else "no reward"
    return f"{when}, {where}: {reward}" + (f" (mean of {len(known)})" if len(known) > 1 else "")


def _text(run: RunData, detail: TrajectoryDetail, other: TrajectoryDetail | None, way: str) -> None:
    """The answer as text, and another one beside it."""
    sides = [detail, *filter(None, [other])]
    if way == "raw":
        for column, side in zip(st.columns(len(sides)), sides, strict=True):
            column.code(side.text or "", language=None, wrap_lines=True)
        return
    sources = RewardConfig.model_validate(run.config()["reward"]).each()
    _draw_parts(reading.prompt_parts(detail.row["prompt"]), way, "")
    for column, side in zip(st.columns(len(sides)), sides, strict=True):
        with column:
            source = sources.get(side.row["reward_source"])
            is_code = source is not None and source.kind == "code"
            if other is not None:
                st.html(_heading(side))
            _draw_parts(
                reading.answer_parts(side, is_code=is_code), way, reading.results_html(side)
            )


def _requests(detail: TrajectoryDetail) -> None:
    """One turn of the policy: an agent's request with all its messages, and the reply to it."""
    turns = reading.replies(detail)
    turn = 0
    if len(turns) > 1:
        key = f"request_{detail.row['trajectory_id']}"
        turn = st.slider("Request", 1, len(turns), len(turns), key=key) - 1
    before = reading.prompt_parts(detail.row["prompt"])
    if turns:
        before += reading.answer_parts(detail, slice(turns[turn].start))
    _draw_parts(before, "text", "")
    if turns:
        st.divider()
        _draw_parts(reading.answer_parts(detail, turns[turn]), "text", "")


def _draw_parts(parts: Sequence[reading.AnswerPart], way: str, results: str) -> None:
    """Parts under their roles; the results of tests stand beside the last code."""
    last = max((i for i, part in enumerate(parts) if part.kind == "code"), default=None)
    for i, part in enumerate(parts):
        if not i or parts[i - 1].role != part.role:
            st.html(f'<div class="hr-role">{escape(part.role)}</div>')
        if way == "drawn" and part.kind == "thoughts":
            with st.expander("thoughts"):
                st.markdown(reading.inert_markdown(part.text))
        elif way == "drawn" and part.kind == "text":
            st.markdown(reading.inert_markdown(part.text))
        else:
            st.html(
                f'<div class="hr-said">{reading.html_of(part, results if i == last else "")}</div>'
            )


def _heading(detail: TrajectoryDetail) -> str:
    row = detail.row
    reward = number(row["reward"]) if row["reward"] is not None else "none yet"
    return f"<b>{int(row['trajectory_id'])}</b>, reward {reward}"


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


def _images(run: RunData, detail: TrajectoryDetail) -> None:
    """The prompt's images, and on them what a reward of places was about."""
    if not detail.images:
        return
    sources = RewardConfig.model_validate(run.config()["reward"]).each()
    marks = marks_of(detail, sources.get(detail.row["reward_source"]))
    st.html(images_html(detail.images, marks))


def _tokens(run: RunData, detail: TrajectoryDetail, other: TrajectoryDetail | None) -> None:
    status, size = detail.row["status"], len(detail.tokens.token_ids)
    if not size:
        goes_on = status in ("issued", "running")
        said = "Waits for the first token of this response."
        panels.empty(said if goes_on else f"This response ended without a token ({status}).")
        return
    # Advantages where an update has trained the response.
    default = "advantage" if (detail.tokens.trained_at_update >= 0).any() else "logprob"
    by = panels.one_of("Colour by", tokens.COLOURINGS, default, key="colour_by")
    longest = max(size, len(other.tokens.token_ids) if other else 0)
    first = 0
    if longest > tokens.MAX_TOKENS:
        starts = list(range(0, longest, tokens.MAX_TOKENS))
        first = st.select_slider("Tokens from", starts, key="tokens_from", bind="query-params") or 0
    if detail.pieces is None:
        st.caption("The model's tokenizer was not found: token ids are shown.")
    if other is None:
        st.html(tokens.scale_html(detail, by))
        _TOKENS(data=answer_data(detail, by, first), key="tokens")
    else:
        _side_by_side(detail, other, by, first)
    st.caption(f"{tokens.COLOURINGS[by]} {_HELP}")
    _chart(detail, by)
    st.download_button(
        "All tokens as JSON",
        lambda: answer_json(detail),
        file_name=f"{run.line.run_dir.name}-{detail.row['trajectory_id']}.json",
        mime="application/json",
        icon=":material/download:",
        on_click="ignore",
    )


def _beside(
    run: RunData, detail: TrajectoryDetail, history: pd.DataFrame
) -> TrajectoryDetail | None:
    """The answer to the same prompt that is read beside this one, if one is chosen."""
    mine = int(detail.row["trajectory_id"])
    others = [str(key) for key in history["trajectory_id"] if int(key) != mine]
    if not others:
        return None
    if st.session_state.get(BESIDE) not in (None, *others):
        st.session_state[BESIDE] = None  # it was chosen beside an answer to another prompt
    chosen = st.selectbox(
        "Beside it", others, index=None, key=BESIDE, bind="query-params",
        placeholder="another answer to this prompt, of any update",
    )  # fmt: skip
    return run.trajectory(int(chosen)) if chosen else None


def _side_by_side(left: TrajectoryDetail, right: TrajectoryDetail, by: str, first: int) -> None:
    """Two answers in the same colours, and where they differ."""
    found = cached_difference(left.tokens.token_ids.tolist(), right.tokens.token_ids.tolist())
    values = np.concatenate([tokens.colour_values(left, by), tokens.colour_values(right, by)])
    scale: tokens.Scale = tokens.colour_scale(values, by)
    ours, theirs = int(left.row["trajectory_id"]), int(right.row["trajectory_id"])
    st.caption(tokens.difference_text(found, ours, theirs))
    sides = ((left, found.left, "tokens"), (right, found.right, "tokens_beside"))
    for column, (detail, differs, key) in zip(st.columns(2), sides, strict=True):
        with column:
            st.html(_heading(detail))
            st.html(tokens.scale_html(detail, by, scale))
            _TOKENS(data=answer_data(detail, by, first, scale=scale, differs=differs), key=key)


def _chart(detail: TrajectoryDetail, by: str) -> None:
    """The quantity along the response."""
    if by in tokens.KINDS:
        return
    values = tokens.colour_values(detail, by)
    frame = pd.DataFrame({"position": range(len(values)), by: values}).dropna()
    if len(frame) > 1:
        cuts = [at for at, _ in tokens.window_cuts(detail) if at]
        line = frame.rename(columns={"position": "x", by: "value"}).assign(name=by)
        panels.draw(
            kept(token_chart, thinned(frame, [by], POINTS), by, cuts),
            f"Trajectory {detail.row['trajectory_id']}, {by} along the response",
            f"{series_words(line, 'position', '')}; {len(cuts)} windows begin inside it.",
        )


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
