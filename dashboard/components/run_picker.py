"""Choice of the run at the left, kept across pages and in the page's address.

In: the folder of runs, the address, what was chosen before. Out: a `RunChoice`. The address always
names a run by its folder, so that a link shows to others what it shows to you; a viewer of `latest`
moves to a new run when one appears.
"""

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from dashboard.reads import data
from headrace.run_files.run_folder import LATEST, latest_name
from storage.queries import UNREADABLE, RunLine

PARAMETER = "run"
"""The name of a run in the address."""
CHOSEN, WRITTEN = "chosen_run", "written_run"
"""In the session: what is chosen, and what this session wrote into the address last."""


@dataclass(frozen=True)
class RunChoice:
    """The run that is shown. `name` is its folder's, `line` how it stands; without a line `trouble`
    says why there is nothing to show."""

    name: str | None
    line: RunLine | None
    trouble: str = ""


def choose_run(root: Path) -> RunChoice:
    """The run that is chosen, which the address names from now on."""
    lines = {line.run_dir.name: line for line in data.runs(str(root))}
    asked, state = st.query_params.get(PARAMETER), st.session_state
    if asked and asked != state.get(WRITTEN):
        state[CHOSEN] = asked  # a link, or a way back in the browser's history
    chosen = state.setdefault(CHOSEN, LATEST)
    name = latest_name(root) if chosen == LATEST else chosen
    state[WRITTEN] = name
    if name is None:
        st.query_params.pop(PARAMETER, None)
        trouble = f"No run under {root} yet. Start one with: headrace train recipes/quickstart.toml"
        if lines:
            trouble = f"All runs under {root} are archived. Choose one at the left."
        return RunChoice(None, None, trouble)
    st.query_params[PARAMETER] = name
    line = lines.get(name)
    if line is None:
        return RunChoice(
            name, None, f"There is no run {name} under {root}. Choose one at the left."
        )
    if line.status == UNREADABLE:
        return RunChoice(name, None, f"Run {name} cannot be read: {line.detail}")
    return RunChoice(name, line)


def offer_runs(root: Path, served_by: str = "") -> None:
    """The picker, at the left; it says when the run has ended that serves the pages."""
    lines = {line.run_dir.name: line for line in data.runs(str(root))}
    names = [LATEST, *(name for name, line in lines.items() if not line.notes.archived)]
    chosen = st.session_state[CHOSEN]
    if chosen not in names:
        names.append(chosen)
    newest = latest_name(root)

    def label(name: str) -> str:
        if name == LATEST:
            return f"latest ({newest})" if newest else LATEST
        if name not in lines:
            return f"{name} (unknown)"
        line = lines[name]
        marks = [line.kind] if line.kind != "training" else []
        marks += [UNREADABLE] if line.status == UNREADABLE else []
        marks += ["archived"] if line.notes.archived else []
        return f"{name} ({', '.join(marks)})" if marks else name

    with st.sidebar:
        st.selectbox(
            "Run",
            names,
            key=CHOSEN,
            format_func=label,
            help="`latest` turns to a new run when one begins. The page's address names the run "
            "that you see.",
        )
        follow(root, newest, len(lines), served_by)


@st.fragment(run_every=5.0)
def follow(root: Path, newest: str | None, known: int, served_by: str = "") -> None:
    """Draw the whole page again when a new run appears."""
    server = next((r for r in data.runs(str(root)) if r.run_dir.name == served_by), None)
    if server is not None and not data.is_live(server):
        st.caption(
            f"{served_by} has ended and serves these pages only while they are open. To look at "
            f"them again:\n\n`headrace dashboard {root}`"
        )
    if latest_name(root) != newest or len(data.runs(str(root))) != known:
        st.rerun()
