"""The answers of a run's training groups as texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sqlalchemy import select

from headrace.errors import UserError
from storage.database.reader import open_run
from storage.database.tables import Prompt, Trajectory
from storage.database.trajectory_rows import joined
from storage.journal.responses import Wanted, read_responses
from storage.text.detokenize import text_decoder


class GroupAnswer(NamedTuple):
    """One answer, the prompt as the policy saw it, and whether it was right (None: not scored)."""

    group_id: int
    prompt: str
    text: str
    correct: bool | None


def group_answers(run_dir: Path) -> Iterator[GroupAnswer]:
    """Every scored answer of the training groups, in the order in which they ended. UserError where
    the run's tokenizer cannot be found."""
    reader, decoder = open_run(run_dir), text_decoder(run_dir)
    if decoder is None:
        raise UserError(
            f"{run_dir.name} has no tokenizer beside its checkpoints or its model: its answers "
            "cannot be read as text"
        )
    columns = (
        Trajectory.trajectory_id,
        Trajectory.group_id,
        Trajectory.first_offset,
        Trajectory.last_offset,
        Trajectory.correct,
        Prompt.text,
    )
    query = (
        joined(select(*columns), reader.key)
        .where(
            Trajectory.purpose == "train",
            Trajectory.last_offset.is_not(None),
            Trajectory.correct.is_not(None),
        )
        .order_by(Trajectory.trajectory_id)
    )
    rows = {row.trajectory_id: row for row in reader.rows(query)}
    if not rows:
        return
    wanted = Wanted(np.array(list(rows)), np.array([row.last_offset for row in rows.values()]))
    first = min(row.first_offset for row in rows.values())
    for key, response in read_responses(reader.journal, wanted, first):
        row = rows[key]
        yield GroupAnswer(row.group_id, row.text, decoder.text(response.token_ids), row.correct)
