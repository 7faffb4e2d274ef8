"""Held-out evaluations of a run."""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from storage.reader import open_run
from storage.tables import Evaluation

if TYPE_CHECKING:
    import pandas as pd


def evaluations(run_dir: Path) -> "pd.DataFrame":
    """One row an evaluation, in order: label, update, version, accuracy, lengths, seconds."""
    reader = open_run(run_dir)
    columns = [c for c in Evaluation.__table__.columns if c.name not in ("run", "offset")]
    query = select(*columns).where(Evaluation.run == reader.key).order_by(Evaluation.offset)
    return reader.frame(query)
