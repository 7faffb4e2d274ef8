"""Query: questions in SQL to the run, within limits."""

from itertools import islice

import pandas as pd
import streamlit as st

from dashboard.components import panels
from dashboard.components.reading import literal_markdown
from dashboard.reads.data import RunData, shown
from headrace.errors import UserError
from storage import queries

SECONDS = 30.0
MEMORY_MIB = 512
MOST_ROWS = 1000
EXAMPLES = {
    "What became of the tokens": (
        "select state, reason, count(*) as windows, sum(tokens) as tokens,\n"
        "    sum(masked_tokens) as masked\n"
        "from windows group by all order by tokens desc"
    ),
    "Accuracy by prompt": (
        "select prompt_id, any_value(prompt) as prompt, count(*) as answers,\n"
        "    avg(correct::int) as accuracy\n"
        "from trajectories where purpose = 'train'\n"
        "group by prompt_id order by abs(accuracy - 0.5) nulls last limit 20"
    ),
    "Believed and realised, by position": (
        'select "position" // 20 * 20 as "from", avg(value) as believed,\n'
        '    avg("return") as came, count(*) as tokens\n'
        "from tokens where trained_at_update >= 0 group by 1 order by 1"
    ),
    "Reward by update": (
        "select update, value from metrics\n"
        "where name = 'reward/mean' and not abandoned order by update"
    ),
    "Columns of a table": "describe tokens",
}


def render(run: RunData) -> None:
    """The page."""
    panels.title(run, "Query")
    example = st.selectbox("Example", list(EXAMPLES))
    with st.form("query", border=False):
        query = st.text_area("SQL", EXAMPLES[example], height=150, key=f"sql {example}")
        asked = st.form_submit_button("Ask", type="primary")
    st.caption(
        "DuckDB's dialect over `trajectories`, `tokens`, `metrics`, `windows` and `scores` at this "
        f"moment. One SELECT, {SECONDS:.0f} seconds, {MEMORY_MIB} MiB, {MOST_ROWS:,} rows shown; "
        "`headrace sql --format csv` prints all rows."
    )
    if asked:
        _answer(run, query)


def _answer(run: RunData, query: str) -> None:
    asking = queries.ask(run.line.run_dir, query, seconds=SECONDS, memory_mib=MEMORY_MIB)
    try:
        with st.spinner("Asking"), asking as answer:
            rows = list(islice(answer.rows, MOST_ROWS + 1))
    except UserError as error:
        st.error(literal_markdown(shown(str(error))))
        return
    if len(rows) > MOST_ROWS:
        st.caption(f"The first {MOST_ROWS:,} rows.")
    # A frame's columns must have different names.
    names = [
        name if answer.columns.count(name) == 1 else f"{name} ({number})"
        for number, name in enumerate(answer.columns, 1)
    ]
    frame = pd.DataFrame(rows[:MOST_ROWS], columns=names)
    st.dataframe(shown(frame), hide_index=True, width="stretch", alt="The answer")
