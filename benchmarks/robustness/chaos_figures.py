"""Figures of a chaos run: losses, doubled training, stale tokens, recovery times.

In: its folder and history. Out: figures, from the audit (which shares no code with the
coordinator), from the learner's own log of updates in its weights, and from the journal.
"""

import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from benchmarks.robustness.chaos_faults import KILLS, Kind
from benchmarks.robustness.chaos_job import ENDED, FaultEvent, JobHistory
from headrace.protocol.records import record_types as r
from headrace.run_files.run_folder import MEDIA
from headrace.run_files.update_log import compare, read_applied
from storage.audit import audit_run
from storage.audit.recount import surplus
from storage.journal.store import read_journal

Figures = dict[str, Any]
DOUBLED: Final = "trained_twice"


def facts(run_dir: Path, history: JobHistory) -> Figures:
    """Return the figures of one run, which `benchmarks.robustness.chaos` explains.

    Also `refusals`, the coordinator's reasons for refused chunks, and `recovery_kill_s`, after
    kills alone. `died` includes tokens that their generator came back with; `rolled_back` excludes
    those that wait for an update."""
    report = audit_run(run_dir)
    weights = compare(run_dir)
    kinds = Counter(finding.kind for finding in report.findings)
    records = [one for batch in read_journal(run_dir / "journal") for _, one in batch]
    lost, failed, refusals = Counter[str](), Counter[str](), []
    for record in records:
        match record:
            case r.TokensLost():
                lost[record.reason] += record.tokens
            case r.TrajectoryEnded(status="failed"):
                failed[(record.error or "").partition(":")[0]] += 1
            case r.Incident(kind="chunk_rejected"):
                refusals.append(record.text)
    rolled_back, again = trained_again(records)
    applied = [line.at for _, line in read_applied(run_dir)]
    images, astray = stored_images(run_dir / MEDIA, records)
    return {
        "lost": lost["refused"] + sum(kinds.values()) - kinds[DOUBLED],
        "moved": lost["moved"],
        "died": lost["died"],
        "refusals": refusals[:5],
        "failed": dict(failed),
        "unexplained": failed[""],
        "doubled": kinds[DOUBLED],
        "doubled_in_weights": len(weights.doubled) + len(weights.doubled_values),
        "weights": weights.problems[:5],
        "findings": dict(kinds),
        "texts": [f"{f.kind} {f.where}: {f.text}" for f in report.findings][:5],
        "ledger_error_tokens": abs(surplus(report.counts)),
        "generated": report.counts["generated"],
        "trained": report.counts["trained_policy"],
        "dropped": report.counts["dropped"],
        "updates": weights.updates,
        "rolled_back": rolled_back,
        "trained_again": again,
        "images": images,
        "images_astray": astray,
        "recovery_s": recoveries(history.faults, applied),
        "recovery_kill_s": recoveries(history.faults, applied, of=KILLS),
    }


def stored_images(folder: Path, records: Iterable[r.Record]) -> tuple[int, int]:
    """Return the numbers of images that the journal names, and of stray files.

    Stray: not under the SHA-256 of their bytes, like partial files; or not named, except those of
    one group, which was drawn when the last coordinator was killed."""
    named, most = set[str](), 0
    for record in records:
        if isinstance(record, r.GroupIssued):
            digests = {run.digest for run in record.media}
            named |= digests
            most = max(most, len(digests))
    astray = unnamed = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        if hashlib.sha256(path.read_bytes()).hexdigest() != path.name:
            astray += 1
        elif path.name not in named:
            unnamed += 1
    return len(named), astray + max(0, unnamed - most)


def trained_again(records: Iterable[r.Record]) -> tuple[int, int]:
    """Return undone tokens that were trained again or dropped, and those in weights.

    Undone by rollbacks; the weights are the surviving ones."""
    sizes: dict[int, int] = {}
    trained: set[int] = set()
    undone: set[int] = set()
    dropped: set[int] = set()
    for record in records:
        match record:
            case r.WindowsClosed():
                sizes |= {window.window_id: window.tokens for window in record.windows}
            case r.UpdateCommitted():
                trained |= set(record.window_ids)
            case r.LineageBegan():
                trained -= set(record.window_ids)
                undone |= set(record.window_ids)
            case r.WindowsDropped():
                dropped |= set(record.window_ids)
    settled = undone & (trained | dropped)
    return sum(sizes[key] for key in settled), sum(sizes[key] for key in settled & trained)


def recoveries(
    done: Sequence[FaultEvent], updates: Sequence[float], *, of: Collection[Kind] = get_args(Kind)
) -> dict[str, list[float]]:
    """Return the seconds from each fault to the next update in the weights, by role.

    From its end, where it lasted; faults that another one followed before are left out, and all
    but the kinds `of`."""
    found: dict[str, list[float]] = defaultdict(list)
    ordered = sorted(updates)
    begins = [*(one.began for one in done[1:]), float("inf")]
    for one, following in zip(done, begins, strict=False):
        begun = one.began if one.fault.kind in KILLS else one.over
        after = next((at for at in ordered if at > begun), None)
        if one.fault.kind in of and after is not None and after < following:
            found[one.fault.role].append(round(after - begun, 2))
    return dict(found)


def single_job_rows(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of runs without parallel jobs."""
    return [row for row in rows if row.get("jobs", 1) == 1]


def ended_badly(row: Mapping[str, Any]) -> bool:
    """Return whether the run's last exit code is neither 0 nor a Ctrl-C's."""
    return row["exit_code"] not in ENDED


def total_figures(rows: Sequence[Mapping[str, Any]]) -> Figures:
    """Return figures of all runs together; `recovery_s`: without parallel jobs."""
    recovery: dict[str, list[float]] = defaultdict(list)
    for row in single_job_rows(rows):
        for role, seconds in row["recovery_s"].items():
            recovery[role] += seconds

    def total(name: str) -> int:
        return sum(row.get(name, 0) for row in rows)

    undone = total("rolled_back")
    counted = (
        "faults", "kills", "stops", "moved", "lost", "doubled", "doubled_in_weights", "orphans",
        "hangs", "unresumable", "ledger_error_tokens", "died", "generated", "trained", "updates",
        "resumes", "images", "images_astray", "unexplained",
    )  # fmt: skip
    return {
        "runs": len(rows),
        **{name: total(name) for name in counted},
        "failed_ends": sum(map(ended_badly, rows)),
        "stale_share": round(
            sum(row["dropped"].get("stale", 0) for row in rows) / max(1, total("generated")), 4
        ),
        "rolled_back_trained_again": round(total("trained_again") / undone, 4) if undone else None,
        "recovery_s": {
            role: {
                "median": round(statistics.median(seconds), 2),
                "max": max(seconds),
                "count": len(seconds),
            }
            for role, seconds in sorted(recovery.items())
        },
    }
