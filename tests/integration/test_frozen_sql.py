"""A PostgreSQL server that is frozen costs a run no more updates than one that is killed, and loses
nothing.

A pair are two runs at the same time, with scripted answers, each with a server of its own that is
stopped by SIGSTOP, or killed, and there again after as long. The whole measurement is
`HEADRACE_FROZEN_S=60 HEADRACE_FROZEN_PAIRS=5 pytest -s tests/integration/test_frozen_sql.py`
"""

import math
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.robustness.chaos_faults import Fault, Kind
from benchmarks.robustness.chaos_job import SMALL, ChaosJob
from benchmarks.robustness.chaos_testbed import Testbed, start_database
from headrace.protocol.records.record_types import UpdateCommitted
from storage.audit import audit_run
from storage.journal.store import read_journal
from storage.queries import any_line
from tests.services import cannot_have, find_postgresql

SECONDS = float(os.environ.get("HEADRACE_FROZEN_S", "6"))
PAIRS = int(os.environ.get("HEADRACE_FROZEN_PAIRS", "1"))
LEAST = 0.95 if SECONDS >= 30 else 0.5
"""Some seconds have some updates, one more or less."""
KINDS: tuple[Kind, ...] = ("freeze_sql", "lose_sql")


def updates_during(kind: Kind, seed: int) -> int:
    """How many updates the journal has of the seconds of this fault."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-sql-")))
        server = start_database(folder / "sql", stack)
        root = folder / "disk" / "runs"
        root.mkdir(parents=True)
        chosen = ("generator.engine=fake", f"seed={seed}", f"storage.database={server.url}")
        job = ChaosJob(Testbed(root, None, database=server), (*SMALL, *chosen))
        history = job.play([Fault(kind, "machine", 0, SECONDS, settled=True, wait_s=15.0)])
        assert (history.last_code, history.resumes, history.hangs) == (130, 0, 0)
        assert audit_run(job.run_dir).findings == []
        assert any_line(job.run_dir).sql == ""  # it has everything
        commits = list(read_journal(job.run_dir / "journal", only=(UpdateCommitted,)))
    began, at = history.faults[0].began, [record.at for batch in commits for _, record in batch]
    spans = [(began - 10.0, began), (began, began + SECONDS), (began + SECONDS, math.inf)]
    print(kind, "10 s before, meanwhile, later:", [sum(a <= t < b for t in at) for a, b in spans])
    return sum(began <= moment < began + SECONDS for moment in at)


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.timeout(PAIRS * (SECONDS + 240))
def test_a_frozen_server_costs_no_more_than_a_killed_one() -> None:
    if find_postgresql() is None:
        cannot_have("PostgreSQL server", "postgresql")
    ratios = []
    for pair in range(PAIRS):
        kinds = KINDS if pair % 2 else KINDS[::-1]
        with ThreadPoolExecutor(len(kinds)) as both:
            found = dict(zip(kinds, both.map(updates_during, kinds, (pair, pair)), strict=True))
        ratios.append(found["freeze_sql"] / found["lose_sql"])
        print(time.strftime("%H:%M:%S"), found, f"{ratios[-1]:.3f}", "load", *os.getloadavg())
    print(SECONDS, "s, frozen to killed, median:", statistics.median(ratios))
    assert statistics.median(ratios) >= LEAST
