"""Runs: all of them in a table, with what people noted on them; open one, compare several.

It needs no run to be chosen, and shows a folder that cannot be read as a grey row with the reason.
Rows are chosen by their names, so that a new run or another order never moves a choice.
"""

import zlib
from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboard.components import panels
from dashboard.components.panels import BOUND, SOME
from dashboard.components.run_table import SORTS, RunFilter, chosen_lines, run_rows, styled
from dashboard.formatting import count, share
from dashboard.reads import data
from headrace.errors import UserError
from headrace.run_files.run_notes import MAX_NOTE_CHARACTERS, change_notes
from storage.queries import RunLine

Query = Mapping[str, str | list[str]]
"""Parameters of a page's address."""
Turn = Callable[[str, Query], None]
"""Goes to the page of that title, with that address."""
CHOSEN = "chosen_rows"
"""In the session: names of the runs that are chosen in the table."""
_OPEN, _TABLE, _TROUBLE = "opened_run", "table_number", "notes_trouble"
_ROWS = 14


def render(root: Path, turn: Turn) -> None:
    """The page."""
    lines = data.runs(str(root))
    st.html(
        '<div class="hr-line"><h1>Runs</h1>'
        f'<span class="hr-run">under {escape(str(root))}</span></div>'
    )
    if not lines:
        panels.empty(
            f"No run under {root} yet. Start one with: headrace train recipes/quickstart.toml"
        )
        return
    wanted, order = _wanted(lines)
    is_live = any(map(data.is_live, lines))

    @st.fragment(run_every=panels.REFRESH_S if is_live else None)
    def section() -> None:
        _section(root, wanted, order, turn)

    section()


def _wanted(lines: list[RunLine]) -> tuple[RunFilter, str]:
    """The filter bar and the order; all of it is in the address."""
    with panels.filters():
        bar = st.columns([2.6, 2, 2, 2, 1.3], vertical_alignment="bottom")
        text = bar[0].text_input(
            "Search", placeholder="name, recipe, tag, note", key="search_runs", **BOUND
        )
        states = bar[1].multiselect(
            "State", sorted({line.status for line in lines}), key="states", **SOME
        )
        kinds = bar[2].multiselect(
            "Kind", sorted({line.kind for line in lines}), key="kinds", **SOME
        )
        tags = bar[3].multiselect("Tags", _tags(lines), key="tags", **SOME)
        order = bar[4].selectbox("Sort by", list(SORTS), key="order_runs", **BOUND)
        archived = False
        if hidden := sum(line.notes.archived for line in lines):
            archived = st.toggle(
                f"Show what is archived ({count(hidden)})", key="archived", **BOUND
            )
    wanted = RunFilter(text or "", tuple(states), tuple(tags), tuple(kinds), bool(archived))
    return wanted, order or "newest"


def _tags(lines: list[RunLine]) -> list[str]:
    return sorted({tag for line in lines for tag in line.notes.tags})


def _section(root: Path, wanted: RunFilter, order: str, turn: Turn) -> None:
    lines = data.runs(str(root))
    shown = chosen_lines(lines, wanted, order)
    names = [line.run_dir.name for line in shown]
    by_name = {line.run_dir.name: line for line in lines}
    chosen = [name for name in st.session_state.get(CHOSEN, []) if name in by_name]
    if shown:
        st.caption(
            f"{count(len(shown))} of {count(len(lines))} runs. A run's name opens it. Choose rows "
            "at their left to compare them, to note something on them, or to put them aside."
        )
        st.html(phone_html(shown))
        _table(shown, names, chosen)
    else:
        st.caption("Nothing matches.")
    opened = st.session_state.get(_OPEN)
    if opened and opened["label"] in by_name:
        turn("Overview", {"run": opened["label"]})
    if chosen:
        _chosen([by_name[name] for name in chosen], _tags(lines), turn)


def phone_html(lines: list[RunLine]) -> str:
    """The first runs as a list, which a phone shows: its table has room for the names alone."""
    rows = (
        f'<li><a href="overview?run={quote(line.run_dir.name)}">{escape(line.run_dir.name)}</a>'
        f"{panels.status_pill(line.status)} <span>{share(line.accuracy)}</span></li>"
        for line in lines[:_ROWS]
    )
    return f'<ul class="hr-phone">{"".join(rows)}</ul>'


def _table(shown: list[RunLine], names: list[str], chosen: list[str]) -> None:
    # A table of other rows is another table: a choice must never move to a row that it was not
    # made for.
    key = f"runs_{zlib.crc32(repr(names).encode())}_{st.session_state.get(_TABLE, 0)}"
    st.dataframe(
        styled(run_rows(shown)),
        hide_index=True,
        width="stretch",
        height=38 + 35 * min(len(shown), _ROWS),
        on_select=partial(_picked, key, names),
        selection_mode="multi-row",
        selection_default={
            "selection": {"rows": [at for at, name in enumerate(names) if name in chosen]}
        },
        key=key,
        placeholder="-",
        alt="All runs",
        column_config={
            "run": st.column_config.ButtonColumn(
                type="tertiary", alignment="left", key=_OPEN, pinned=True, width=265
            ),
            "accuracy": st.column_config.NumberColumn(help="newest held-out accuracy"),
            "tokens": st.column_config.NumberColumn(help="policy tokens trained"),
            "time": st.column_config.NumberColumn(help="from its first record to its newest"),
            "when": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm"),
            "note": st.column_config.TextColumn(width="medium"),
            "why": st.column_config.TextColumn(
                help="why it ended, or why it cannot be read", width="medium"
            ),
        },
    )


def _picked(key: str, names: list[str]) -> None:
    """Rows were chosen, or let go; what is chosen in rows that are not shown stays chosen."""
    rows = st.session_state[key]["selection"]["rows"]
    elsewhere = [name for name in st.session_state.get(CHOSEN, []) if name not in names]
    st.session_state[CHOSEN] = [*elsewhere, *(names[row] for row in sorted(rows))]


def _chosen(lines: list[RunLine], tags: list[str], turn: Turn) -> None:
    """Actions on the chosen runs."""
    names = [line.run_dir.name for line in lines]
    with panels.framed("Chosen"):
        st.html(f'<span class="hr-chosen">{escape(", ".join(names))}</span>')
        with st.container(horizontal=True):
            if st.button("Compare", icon=":material/compare_arrows:", type="primary"):
                turn("Compare", {"runs": names})
            aside = [line for line in lines if not line.notes.archived and not data.is_live(line)]
            if aside and st.button(
                "Archive",
                icon=":material/archive:",
                help="Lists leave them out and `latest` never means them; nothing is removed.",
            ):
                _change(aside, archived=True)
            archived = [line for line in lines if line.notes.archived]
            if archived and st.button("Take back", icon=":material/unarchive:"):
                _change(archived, archived=False)
            st.button("Choose none", on_click=_choose_none)
        if st.session_state.get(_TROUBLE):
            st.error(st.session_state[_TROUBLE], icon=":material/error:")
        if len(lines) == 1:
            _notes(lines[0], tags)


def _choose_none() -> None:
    """Let go of all rows, by a table that is new."""
    st.session_state[CHOSEN], st.session_state[_TROUBLE] = [], ""
    st.session_state[_TABLE] = st.session_state.get(_TABLE, 0) + 1


def _notes(line: RunLine, tags: list[str]) -> None:
    """Tags and note of a run, to be edited."""
    name = line.run_dir.name
    with st.form(f"notes_{name}", border=False):
        found = st.multiselect(
            "Tags",
            sorted({*tags, *line.notes.tags}),
            default=list(line.notes.tags),
            accept_new_options=True,
            placeholder="choose or write one",
            key=f"tags_{name}",
        )
        note = st.text_area(
            "Note",
            value=line.notes.note,
            max_chars=MAX_NOTE_CHARACTERS,
            key=f"note_{name}",
            height=90,
        )
        if st.form_submit_button("Keep", icon=":material/save:"):
            _change([line], tags=found, note=note)
    if line.notes.trouble:
        st.caption(f"{line.notes.trouble}. What you keep replaces it.")


def _change(lines: list[RunLine], **changes: Any) -> None:
    """Note it on each of them; what cannot be written is said in one line."""
    troubles = []
    for line in lines:
        try:
            change_notes(line.run_dir, **changes)
        except UserError as error:
            troubles.append(str(error))
    st.session_state[_TROUBLE] = "  \n".join(troubles)
    data.runs.clear()
    st.rerun()
