"""Claim: the journal costs at most 2 % of generation throughput.

In real runs that evaluate alone (coordinator, leases, rewards, one generator) the recipe's engine
answers held-out prompts. Turn by turn of the same run the coordinator's store is the one that every
run has (Arrow segments, an fsync a commit, SQL), or confirms at once what it is given
(`benchmarks.performance.journal_turns`). Records are made, applied and gathered for
`storage.commit_interval_ms` in both, so the ratio is of all that follows: encoding, digests,
segments, fsync, SQL.

Out: a line a run; with --json, as the last line, one JSON object:

- ratio                  tokens a second with the journal over those without, means over the rounds
                         (goal: at least 0.98); a round has a turn of each kind, in drawn order
- interval               its 95 % interval, by bootstrap over rounds; null with a single round
- ratio_min, ratio_max   of single rounds
- rounds, runs           how many; rounds count while no slot of the generator is empty
- tokens_per_s, answers_per_s  by kind of turn, means over the rounds
- writer                 in turns with the journal: `core_share` of the recorder's thread (in cores)
                         and `cpu_s`, its processor seconds, in `seconds`; `commits_per_s`,
                         `records_per_s`; `fsyncs` of segments, and `fsync_share`, the share of the
                         time in them; `journal_bytes`, that the journal grew by, and
                         `written_bytes`, of the coordinator to files in all, SQL's log and tables
                         included; the same for a token (`..._per_token`)
- engine, settings, filesystem (an fsync costs nothing on tmpfs: see --root)
- wall_s, others_cpu_share, steal_share, disturbed, cpu_s  the machine meanwhile, by role
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console

from benchmarks.kit.command_line import command_line, offer_row, take_engine
from benchmarks.kit.machine_state import Watch, roles_in
from benchmarks.kit.rows import keep, result_line
from benchmarks.kit.time_to_target import Time, compared
from benchmarks.performance.journal_turns import KINDS, Kind, Plan, Turn, options_of, read_turns
from headrace.config.loading.hub import with_local_model
from headrace.config.loading.recipe import load_recipe
from headrace.config.preflight.checks import check_recipe
from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError
from headrace.host.hardware import detect
from headrace.host.install import ROOT
from headrace.protocol.records.record_types import ChunkArrived, LeaseIssued, TrajectoryEnded
from headrace.run_files.run_folder import locked, make_run_folder
from headrace_cli.commands.checks.preflight import check_start
from headrace_cli.commands.run.train import supervise
from headrace_cli.launch.keys import with_keys
from headrace_cli.launch.plan import ProcessSpec, Restarts, plan_processes
from headrace_cli.launch.supervisor import DONE, INTERRUPTED
from storage.journal.store import read_journal

RECIPE = ROOT / "recipes" / "quickstart.toml"
GOAL = 0.98
Measured = Mapping[str, float]
"""Of a turn: `seconds`, `tokens` that were generated and accepted, `answers` that ended, and what
the writer did (`Work`)."""
Round = Mapping[Kind, Measured]


@dataclass(frozen=True)
class Flow:
    """What a generator brought: when each chunk and each answer's end came, in order, how many
    tokens had come before each chunk and with the last one, and when the last lease was given."""

    chunks: Sequence[float]
    tokens: Sequence[int]
    ended: Sequence[float]
    last_lease: float

    def measured(self, turn: Turn) -> Measured:
        """What came in a turn; what comes at its very end is the next one's."""
        bounds = turn.began, turn.ended
        first, last = np.searchsorted(self.chunks, bounds)
        ended = np.searchsorted(self.ended, bounds)
        return {
            "seconds": turn.ended - turn.began,
            "tokens": self.tokens[last] - self.tokens[first],
            "answers": int(ended[1] - ended[0]),
            **asdict(turn.work),
        }


def flow_of(run_dir: Path) -> Flow:
    """What a run's journal says."""
    chunks: list[tuple[float, int]] = []
    ended: list[float] = []
    last_lease = 0.0
    kinds = (ChunkArrived, TrajectoryEnded, LeaseIssued)
    for batch in read_journal(run_dir / "journal", only=kinds):
        for _, record in batch:
            match record:
                case ChunkArrived(at=at, token_ids=ids):
                    chunks.append((at, ids.size))
                case TrajectoryEnded(at=at):
                    ended.append(at)
                case LeaseIssued(at=at):
                    last_lease = max(last_lease, at)
    chunks.sort()
    tokens = [0, *accumulate(size for _, size in chunks)]
    return Flow([at for at, _ in chunks], tokens, sorted(ended), last_lease)


def rounds_of(flow: Flow, turns: Sequence[Turn]) -> list[Round]:
    """Whole rounds, as long as prompts waited: behind the last lease slots become empty."""
    full = [turn for turn in turns if turn.ended <= flow.last_lease]
    measured = [(turn.kind, flow.measured(turn)) for turn in full]
    return [dict(pair) for pair in zip(measured[::2], measured[1::2], strict=False)]


def figures(rounds: Sequence[Round]) -> dict[str, Any]:
    """The figures of all rounds."""

    def per_s(name: str) -> dict[Kind, float]:
        """Means over the rounds."""
        return {
            kind: round(statistics.mean(_rate(one[kind], name) for one in rounds), 1)
            for kind in KINDS
        }

    return {
        **over_none(rounds),
        "rounds": len(rounds),
        "tokens_per_s": per_s("tokens"),
        "answers_per_s": per_s("answers"),
        "writer": writer([one["journal"] for one in rounds]),
    }


def _rate(one: Measured, name: str = "tokens") -> float:
    return one[name] / one["seconds"]


def over_none(rounds: Sequence[Round]) -> dict[str, Any]:
    """Tokens a second in turns with a journal over those in turns without."""
    pairs = ((Time(_rate(one["journal"]), True), Time(_rate(one["none"]), True)) for one in rounds)
    found = compared(dict(enumerate(pairs)))
    bounds = found["interval"]
    return {
        **{name: round(found[name], 4) for name in ("ratio", "ratio_min", "ratio_max")},
        "interval": None if bounds is None else [round(bound, 4) for bound in bounds],
    }


def writer(turns: Sequence[Measured]) -> dict[str, Any]:
    """What the writer did in some turns."""
    whole = {name: sum(one[name] for one in turns) for name in turns[0]}
    seconds, tokens = whole["seconds"], max(1, whole["tokens"])
    written = ("journal_bytes", "written_bytes")
    return {
        "seconds": round(seconds, 2),
        "cpu_s": round(whole["cpu_s"], 3),
        "core_share": round(whole["cpu_s"] / seconds, 4),
        **{f"{name}_per_s": round(whole[name] / seconds, 1) for name in ("commits", "records")},
        "fsyncs": whole["fsyncs"],
        "fsync_share": round(whole["fsync_s"] / seconds, 4),
        **{name: whole[name] for name in written},
        **{f"{name}_per_token": round(whole[name] / tokens, 1) for name in written},
    }


def play(config: RunConfig, plan: Plan) -> Path:
    """A run whose coordinator takes turns, to its end; its folder."""
    hardware = detect()
    config = check_start(config, hardware)
    run_dir = make_run_folder(config)
    with locked(run_dir), (run_dir / "logs" / "supervisor.log").open("w") as log:
        config = with_keys(run_dir, config)
        specs = [in_turns(spec, plan) for spec in plan_processes(config, run_dir, hardware)]
        outcome, _ = supervise(run_dir, config, specs, Console(file=log), live=False)
    if outcome.code == INTERRUPTED:
        raise KeyboardInterrupt
    if outcome.code != DONE:
        raise RunFailedError(f"{outcome.cause}\n{outcome.tail}")
    return run_dir


def in_turns(spec: ProcessSpec, plan: Plan) -> ProcessSpec:
    """The coordinator's process with a store that takes turns; no other coordinator takes over."""
    if spec.role != "coordinator":
        return spec
    python, module, _, *options = spec.argv
    argv = (python, module, "benchmarks.performance.journal_turns", *options_of(plan), *options)
    return replace(spec, argv=argv, restarts=Restarts())


def recipe_of(options: argparse.Namespace, root: Path) -> RunConfig:
    """The recipe as it evaluates alone."""
    overrides = [
        f"generator.engine={options.engine}",
        *options.overrides,
        f"evaluation.num_prompts={options.prompts}",
        *("evaluation.only=true", "evaluation.before=true", "evaluation.after=false"),
        *("name=journal", f"root={json.dumps(str(root))}", "dashboard.enabled=false"),
        # So many prompts are drawn and encoded in some seconds, in which nobody hears anything.
        "transport.heartbeat_timeout_s=60",
    ]
    config = load_recipe(Path(options.recipe), overrides)
    check_recipe(config)
    return with_local_model(config, download=True)


def measure(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """All runs; the figures, and the state of the machine meanwhile."""
    config = recipe_of(options, root)
    rounds: list[Round] = []
    roles: dict[int, str] = {}
    with Watch() as watch:
        for number in range(options.repeats):
            plan = Plan(options.turn_s, options.settle_s, number)
            run_dir = play(config, plan)
            roles |= roles_in(run_dir)
            found = rounds_of(flow_of(run_dir), read_turns(run_dir))
            if not found:
                raise RunFailedError("no round was over before the prompts were: raise --prompts")
            rounds += found
            print(f"run {number + 1}: {line(figures(found))}", flush=True)
    return {
        "benchmark": "journal",
        **figures(rounds),
        "runs": options.repeats,
        "engine": config.generator.engine,
        "settings": {
            "recipe": Path(options.recipe).stem,
            "overrides": options.overrides,
            "prompts": options.prompts,
            "turn_s": options.turn_s,
            "settle_s": options.settle_s,
            "commit_interval_ms": config.storage.commit_interval_ms,
        },
        "filesystem": filesystem_of(root),
        **watch.state(roles).as_row(),
    }


def line(found: Mapping[str, Any]) -> str:
    """Figures in a line."""
    rates, writes = found["tokens_per_s"], found["writer"]
    bounds = found["interval"]
    spread = f", 95 % interval {bounds[0]:.3f} to {bounds[1]:.3f}" if bounds else ""
    return (
        f"{rates['journal']:,.0f} tokens a second with the journal, {rates['none']:,.0f} without: "
        f"{found['ratio']:.3f} ({found['ratio_min']:.3f} to {found['ratio_max']:.3f} in "
        f"{found['rounds']} rounds{spread}); its writer takes {writes['core_share']:.1%} of "
        f"a core, fsyncs {writes['fsync_share']:.1%} of the time"
    )


def filesystem_of(folder: Path) -> str:
    """What kind of file system holds a folder."""
    mounts = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if folder.resolve().is_relative_to(mount.mountpoint)
    ]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "unknown"


def options_from(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line("journal", __doc__)
    parser.add_argument("overrides", nargs="*", help="key=value, e.g. model.path=FOLDER")
    parser.add_argument("--recipe", default=str(RECIPE), help="whose generator and prompts")
    take_engine(parser, "vllm")
    parser.add_argument("--prompts", type=int, default=24576, help="held-out prompts of a run")
    parser.add_argument("--repeats", type=int, default=5, help="runs")
    parser.add_argument("--turn-s", type=float, default=4.0, help="seconds of a turn")
    parser.add_argument("--settle-s", type=float, default=1.0, help="seconds before each turn")
    parser.add_argument("--root", type=Path, help="where runs are written (a temporary folder)")
    offer_row(parser)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = options_from(argv)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.root) as root:
        result = measure(options, Path(root))
    print(f"all: {line(result)} (goal: at least {GOAL})")
    keep(options.rows, result)
    if options.json:
        print(result_line(result))
    return 0


if __name__ == "__main__":  # vLLM's engine process imports the main module again
    sys.exit(main())
