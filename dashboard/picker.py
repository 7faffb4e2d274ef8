"""Which run is looked at: a choice at the left, kept in the page's address.

`latest` follows the newest run: when one appears, the page turns to it.
"""

from pathlib import Path

import streamlit as st

from dashboard import data

LATEST = "latest"


def pick_run(root: Path) -> Path | None:
    """The run picker; the choice is kept in the page's address."""
    newest = data.newest_run(str(root))
    folders = {line.run_id: line.run_dir for line in data.runs(str(root))}
    names = [LATEST, *folders]
    asked = st.query_params.get("run", LATEST)
    with st.sidebar:
        chosen = st.selectbox(
            "Run",
            names,
            index=names.index(asked) if asked in names else 0,
            format_func=lambda name: (
                f"latest ({newest.name})" if name == LATEST and newest else name
            ),
        )
        follow(root, newest, len(folders))
    if chosen == LATEST:
        st.query_params.pop("run", None)
        return newest
    st.query_params["run"] = chosen
    return folders[chosen]


@st.fragment(run_every=5.0)
def follow(root: Path, newest: Path | None, known: int) -> None:
    """Draw the whole page again when a new run appears."""
    if data.newest_run(str(root)) != newest or len(data.runs(str(root))) != known:
        st.rerun()
