"""Versions of the weights, and their way to the generators."""

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from storage.reader import open_run
from storage.tables import VersionLoad, WeightVersion

if TYPE_CHECKING:
    import pandas as pd


def weight_versions(run_dir: Path) -> "pd.DataFrame":
    """One row a load: version, lineage, update, published_at, generator, loaded_at, gap_s, load_s
    (generator and the rest are empty for a version nobody loaded)."""
    reader = open_run(run_dir)
    query = (
        select(
            WeightVersion.version,
            WeightVersion.lineage,
            WeightVersion.update,
            WeightVersion.published_at,
            VersionLoad.generator,
            VersionLoad.at.label("loaded_at"),
            VersionLoad.gap_s,
            VersionLoad.load_s,
        )
        .join(
            VersionLoad,
            (VersionLoad.run == WeightVersion.run) & (VersionLoad.version == WeightVersion.version),
            isouter=True,
        )
        .where(WeightVersion.run == reader.key)
        .order_by(WeightVersion.version, VersionLoad.offset)
    )
    return reader.frame(query)
