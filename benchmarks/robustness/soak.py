"""Claim: a coordinator's memory does not grow with a run, and kills cost nothing.

Scripted peers send `--trajectories` answers through a real coordinator, its journal and its SQL.
It is killed (SIGKILL) and started again `--restarts` times, at equal distances. In: the length.
Out: progress; with --json, as the last line, one JSON object. `trajectories_per_s`: over the whole
run; `growth`: relative growth of the coordinator's memory from the second third of a stretch
between two kills to its end, the maximum of all stretches; `growth_of_run`: the last stretch's end
over the first one's; `memory` has each stretch, and the memory in each tenth of it; `restart_s`:
from each kill to the next scored answer; `journal_mb`, `sql_mb`; `findings`: the number of findings
of `headrace audit` afterwards (0; the checkpoints that the scripted learner does not write, and a
write that the final kill cuts off, do not count), and `texts`, the first of them.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.pinned_coordinator import PinnedCoordinator, bench_folder
from benchmarks.kit.rows import report_result
from benchmarks.robustness.fleet import CountingReward, short_answers
from storage.audit import audit_run
from storage.audit.findings import Finding

EVERY_S = 1.0
"""Seconds between two samples of the coordinator's memory."""
MIB = 1 << 20
NO_CHECKPOINT = "is not there"
"""End of the finding for a checkpoint that the scripted learner does not write."""
MOST_TEXTS = 10
"""Maximum number of findings that are written out."""


class MemorySample(NamedTuple):
    """The coordinator's memory (MiB), by the number of scored answers."""

    scored: int
    memory: float


async def run(
    folder: Path, *, trajectories: int, restarts: int, generators: int, core: int
) -> dict[str, Any]:
    """Run the whole benchmark."""
    stretches: list[list[MemorySample]] = []
    restart_s: list[float] = []
    began = time.monotonic()
    settings = {"generators": generators, "ranks": 1, "every_updates": 20, "core": core}
    async with short_answers(folder, **settings) as (server, reward, _):
        with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as progress:
            task = progress.add_task("answers", total=trajectories)
            for part in range(1, restarts + 2):
                if part > 1:
                    restart_s.append(await _killed(server, reward))
                looks: list[MemorySample] = []
                goal = trajectories * part // (restarts + 1)
                waiting = asyncio.create_task(reward.until(goal))
                while not waiting.done():
                    await asyncio.wait([waiting], timeout=EVERY_S)
                    looks.append(MemorySample(reward.scored, server.seen.memory_info().rss / MIB))
                    progress.update(task, completed=reward.scored)
                await waiting
                stretches.append(looks)
        wall = time.monotonic() - began
    audit = await asyncio.to_thread(audit_run, folder)
    found = [one for one in audit.findings if not _is_expected(one)]
    journal = (path.stat().st_size for path in (folder / "journal").rglob("*") if path.is_file())
    return {
        "name": "soak",
        "trajectories": trajectories,
        "restarts": restarts,
        "trajectories_per_s": round(trajectories / wall, 1),
        **growth(stretches),
        "restart_s": [round(seconds, 2) for seconds in restart_s],
        "journal_mb": round(sum(journal) / MIB, 1),
        "sql_mb": round(sum(p.stat().st_size for p in folder.glob("*.sqlite*")) / MIB, 1),
        "findings": len(found),
        "texts": [f"{one.kind} {one.where}: {one.text}" for one in found[:MOST_TEXTS]],
        "balanced": audit.balanced,
    }


async def _killed(server: PinnedCoordinator, reward: CountingReward) -> float:
    """Kill and restart the coordinator; return seconds until the next scored answer."""
    before, began = reward.scored, time.monotonic()
    server.kill()
    await asyncio.to_thread(server.start, resume=True)
    await reward.until(before + 1)
    return time.monotonic() - began


def _is_expected(finding: Finding) -> bool:
    """Return whether a finding is the benchmark's: a cut-off write or no checkpoint."""
    if finding.kind == "checkpoint":
        return finding.text.endswith(NO_CHECKPOINT)
    return finding.kind == "torn"


def growth(stretches: Sequence[Sequence[MemorySample]]) -> dict[str, Any]:
    """Return the growth of memory, of each stretch's last tenth over its second third."""
    lines: list[dict[str, Any]] = []
    for looks in stretches:
        warm, end = _held(looks, 1 / 3, 2 / 3), _held(looks, 0.9, 1.0)
        lines.append(
            {
                "from": looks[0].scored,
                "to": looks[-1].scored,
                "warm_mb": round(warm, 1),
                "end_mb": round(end, 1),
                "tenths_mb": [round(_held(looks, n / 10, (n + 1) / 10)) for n in range(10)],
            }
        )
    return {
        "memory": lines,
        "growth": round(max(one["end_mb"] / one["warm_mb"] for one in lines) - 1, 4),
        "growth_of_run": round(lines[-1]["end_mb"] / lines[0]["end_mb"] - 1, 4),
    }


def _held(looks: Sequence[MemorySample], since: float, until: float) -> float:
    """Return the median memory in a part of a stretch, given as shares of its answers.

    Without a sample there, that at the stretch's end."""
    first, size = looks[0].scored, max(1, looks[-1].scored - looks[0].scored)
    among = [look.memory for look in looks if since <= (look.scored - first) / size <= until]
    return statistics.median(among or [looks[-1].memory])


def main(argv: Sequence[str]) -> int:
    parser = command_line("soak", __doc__)
    parser.add_argument("--trajectories", type=int, default=1_000_000, help="of the run")
    parser.add_argument("--restarts", type=int, default=3, help="kills of the coordinator")
    parser.add_argument("--generators", type=int, default=8, help="how many at once")
    parser.add_argument("--keep", type=Path, help="a folder for the run, which then stays")
    add_rows_option(parser)
    args = parser.parse_args(argv)
    with bench_folder(parser) as (root, core):
        folder = args.keep or root / "run"
        sizes = {name: getattr(args, name) for name in ("trajectories", "restarts", "generators")}
        result = asyncio.run(run(folder, **sizes, core=core))
    print(
        f"{result['trajectories_per_s']:.0f} answers a second; memory grew by "
        f"{result['growth']:.1%} in a stretch (goal: under 5 %), by {result['growth_of_run']:.1%} "
        f"over the run; restarts took {result['restart_s']} s; the audit finds "
        f"{result['findings']} things wrong"
    )
    return report_result(args, result)
