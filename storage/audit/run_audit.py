"""The audit of a run: a recount of its tokens, and a check of every promise.

In: a run's folder. Out: the counts, and the findings. It also works while the run goes on: it reads
the journal up to the last whole batch, and compares SQL with the part of the journal that SQL has.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.protocol.records.record_types import RECORD_FORMAT
from headrace.run_files.run_folder import is_running
from headrace.run_files.update_log import compare
from storage.audit.files import (
    check_checkpoints,
    check_diagnostics,
    check_images,
    check_masks,
    check_small_files,
)
from storage.audit.findings import Finding, Findings
from storage.audit.journal_facts import JournalFacts
from storage.audit.reading import UsableRecords, survey
from storage.audit.recount import LedgerChecks, check_tokens, count, surplus
from storage.audit.sequences import SequenceChecks
from storage.audit.sql import check_facts, check_rows, moment
from storage.audit.updates import UpdateChecks
from storage.database.reader import check_formats, read_config
from storage.journal.store import run_id_of

AuditProgress = Callable[[int, int], None]
"""Called with the number of examined records, and of all."""
_EVERY = 1000


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit.

    Attributes:
        format: the record format of the journal. balanced: generated tokens are those in the
        accounts, and the coordinator counted the same. counts: tokens by account, as
        `storage.audit.recount.count` gives them. looked_at: numbers of examined records,
        trajectories, windows, token tables, images, checkpoints, updates in the learner's log and
        windows' diagnostics.
    """

    run: str
    format: int
    balanced: bool
    counts: dict[str, Any]
    looked_at: dict[str, int]
    findings: list[Finding]

    @property
    def is_clean(self) -> bool:
        """True if nothing is wrong."""
        return self.balanced and not self.findings


def audit_run(run_dir: Path, progress: AuditProgress | None = None) -> AuditReport:
    """Audit a run. UserError: the folder holds no run, or one of another format."""
    config = read_config(run_dir)
    check_formats(run_dir)
    # Whether a folder that cannot be written is still written by others cannot be asked.
    growing = not os.access(run_dir, os.W_OK) or is_running(run_dir)
    facts, findings = JournalFacts(), Findings()
    looked_at: dict[str, int] = {}
    with moment(run_dir, findings) as sql:
        journal = survey(run_dir / "journal", findings, growing=growing)
        is_whole = not (findings.has("damaged") or findings.has("journal"))
        has_value = config["algorithm"]["value"] is not None
        checks = (
            SequenceChecks(facts, findings, has_value=has_value),
            UpdateChecks(facts, findings),
            LedgerChecks(facts, findings, journal.figures_at),
        )
        projected = -1 if sql is None else sql.next_offset()  # up to there SQL has the journal
        if projected > journal.end:
            text = f"has {projected} records, and the journal {journal.end} that can be read"
            findings.add("sql", "projection", text)
        journaled, reached = UsableRecords(run_dir / "journal", journal.end), 0
        for read in journaled:
            reached = read.offset + 1
            for each in checks:
                each.check_record(read)
            if sql is not None and reached == projected:
                check_facts(sql, facts, findings)
                looked_at["token_tables"] = check_masks(sql, facts, findings)
            if progress is not None and (reached % _EVERY == 0 or reached == journal.end):
                progress(reached, journal.end)
        if journaled.problem is not None:
            text = f"{journaled.problem}; what follows it was not looked at"
            findings.add("unusable", f"record {journaled.reached}", text)
        if sql is not None and 0 <= projected <= reached:
            check_rows(run_dir, config, sql, projected, findings)
    check_tokens(facts, findings, settled_before=journal.last_batch)
    if facts.images:
        looked_at["images"] = check_images(run_dir, facts, findings)
    looked_at["checkpoints"] = check_checkpoints(run_dir, facts, findings)
    check_small_files(run_dir, facts, findings, growing=growing)
    if is_whole:
        applied = compare(run_dir)
        looked_at["applied"] = applied.updates
        for problem in applied.problems:
            findings.add("weights", "applied", problem)
    if config["storage"]["token_diagnostics"]:
        looked_at["diagnostics"] = check_diagnostics(
            run_dir, facts, findings, growing=growing,
            max_bytes=int(config["transport"]["max_message_mib"] * 2**20),
        )  # fmt: skip
    counts = count(facts)
    return AuditReport(
        run=run_id_of(run_dir),
        format=RECORD_FORMAT,
        balanced=surplus(counts) == 0 and not findings.has("ledger"),
        counts=counts,
        looked_at={
            "records": reached,
            "trajectories": len(facts.trajectories),
            "windows": len(facts.windows),
            **looked_at,
        },
        findings=findings.all(),
    )
