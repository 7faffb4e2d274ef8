"""Choice of the runs to compare, kept across pages and in the page's address.

In: the folder of runs, the address, what was chosen before. Out: lines of runs that can be
compared; of the others it is said why they cannot. Without a choice it is the run at the left with
the newest others of its recipe.
"""

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from dashboard.components import panels
from dashboard.reads import data
from storage.queries import UNREADABLE, WITHOUT_UPDATES, RunLine

PARAMETER = "runs"
"""Names of runs in the address."""
_WIDGET, _KEPT, _WRITTEN = "compared", "compared_runs", "written_runs"
_SUGGESTED = 6
"""Maximum number of runs compared by default."""


def choose_runs(root: Path, left: str | None) -> list[RunLine]:
    """The runs that are chosen, which the address names from now on. `left`: the run that is chosen
    for the other pages."""
    lines = {line.run_dir.name: line for line in data.runs(str(root))}
    asked, state = st.query_params.get_all(PARAMETER), st.session_state
    if asked and asked != state.get(_WRITTEN):
        state[_WIDGET] = list(dict.fromkeys(asked))  # a link, or a way back in the history
    elif _WIDGET not in state:
        kept = state.get(_KEPT)
        state[_WIDGET] = suggested(list(lines.values()), left) if kept is None else kept
    offered = [name for name, line in lines.items() if _trouble(name, line, root) is None]
    offered = [name for name in offered if not lines[name].notes.archived]
    chosen = st.multiselect(
        "Runs",
        [*offered, *(name for name in state[_WIDGET] if name not in offered)],
        key=_WIDGET,
        placeholder="choose runs to compare",
        format_func=lambda name: _label(name, lines.get(name)),
    )
    state[_KEPT] = state[_WRITTEN] = list(chosen)
    if chosen:
        st.query_params[PARAMETER] = chosen
    else:
        st.query_params.pop(PARAMETER, None)
    troubles = {name: _trouble(name, lines.get(name), root) for name in chosen}
    for trouble in filter(None, troubles.values()):
        panels.empty(trouble)
    return [lines[name] for name in chosen if troubles[name] is None]


def suggested(lines: Sequence[RunLine], left: str | None) -> list[str]:
    """Runs to compare by default: the run at the left, or the newest that trained,
    and the newest others of its recipe; where there are none, the newest of another."""
    trained = [
        line
        for line in lines
        if line.kind == "training" and line.status != UNREADABLE and not line.notes.archived
    ]
    if not trained:
        return []
    first = next((line for line in trained if line.run_dir.name == left), trained[0])
    others = [line for line in trained if line is not first]
    same = [line for line in others if line.name == first.name][: _SUGGESTED - 1]
    return [line.run_dir.name for line in [first, *(same or others[:1])]]


def _label(name: str, line: RunLine | None) -> str:
    if line is None:
        return f"{name} (unknown)"
    seed = "" if line.seed is None else f" seed {line.seed}"
    marks = [line.status] if data.is_live(line) or line.status == UNREADABLE else []
    marks += ["archived"] if line.notes.archived else []
    return f"{name}{seed}" + (f" ({', '.join(marks)})" if marks else "")


def _trouble(name: str, line: RunLine | None, root: Path) -> str | None:
    """Why a run cannot be compared."""
    if line is None:
        return f"There is no run {name} under {root}."
    if line.status == UNREADABLE:
        return f"Run {name} cannot be read: {line.detail}"
    if line.kind in WITHOUT_UPDATES:
        return f"{name} is the run of a {line.kind}: it has no updates of RL to compare."
    return None
