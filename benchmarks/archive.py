"""Rows that `docs/evidence.md` is made of: finished measurements, under the month they are from.

In: a study, or the name of one. Out: its rows of that month. What was measured stays what it is
where a recipe, the code or the study itself has changed since, so that these rows are found by
their arm and seed alone. A study that is run again does not read them: it begins a file of its own
in `benchmarks/results`.
"""

from benchmarks import tries
from benchmarks.rows import RESULTS, Rows
from benchmarks.study_plan import Row, Study, key

MONTH = "2026-11"
MEASURED = RESULTS / MONTH


def study_rows(study: Study) -> Rows:
    """The rows of a study whose arms are what they were, each under the key that its arm and seed
    have now."""
    rows = Rows(MEASURED / study.rows_path.name)
    arms = {arm.name: arm for arm in study.arms}
    kept = [row for row in rows.rows.values() if row["arm"] in arms]
    found = [
        {**row, "key": key(arms[row["arm"]], row["seed"]) + row["key"][len(tries.key_of(row)) :]}
        for row in kept
    ]
    rows.rows = {row["key"]: row for row in found}
    return rows


def measured_arms(study: Study) -> dict[str, dict[int, Row]]:
    """The rows of a study whose arms have changed since, by the arm's name then and the seed."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows_in(study.rows_path.name):
        found.setdefault(row["arm"], {})[row["seed"]] = row
    return found


def rows_in(name: str) -> list[Row]:
    """All rows of the file `name`, in its order."""
    return list(Rows(MEASURED / name).rows.values())
