"""A run's place in SQL: makes its row.

In: a transaction, a run's id and configuration. Out: the run's key.
"""

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert, make_url, select

from headrace.metrics import METRICS
from storage.projection.rows import upsert
from storage.tables import MetricInfo, Projection, Run


def register(connection: Connection, run_id: str, config: Mapping[str, Any]) -> int:
    """The run's key; a new run gets its row. `config` is the resolved configuration."""
    upsert(connection, MetricInfo, [info._asdict() for info in METRICS.values()])
    run = connection.execute(select(Run.id).where(Run.run_id == run_id)).scalar_one_or_none()
    if run is None:
        row = {"run_id": run_id, "name": config["name"], "config": _public(config)}
        run = connection.execute(insert(Run).values(**row).returning(Run.id)).scalar_one()
        connection.execute(insert(Projection).values(run=run))
    return run


def _public(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the database's password."""
    values: dict[str, Any] = json.loads(json.dumps(config))
    url = values.get("storage", {}).get("database")
    if url is not None:
        values["storage"]["database"] = make_url(url).render_as_string(hide_password=True)
    return values
