"""Kills, stops, a full disk, a cut network: is anything lost, or trained twice?

Each run is `headrace train` on the quickstart with small batches, in a network and on a disk of its
own. A seed draws its faults: SIGKILL to any role, to its children (inference engine, scorers) or to
the whole job, which is then resumed; SIGSTOP to the same, shorter and longer than the seconds after
which a process counts as gone, and SIGCONT; the disk filled to the last byte, or frozen repeatedly;
the network cut, or slow; RST to the connections of any role, once or for some seconds; SIGSTOP or a
kill to the PostgreSQL server that runs with odd seeds have. Seven of ten faults wait until the run
has gone on, the others come while it recovers. A Ctrl-C ends the run, and then it is read:

- lost                       tokens that arrived and were refused, and every finding of the audit
                             but those of the next two
- moved                      tokens that a generator sampled and another one as well, because the
                             first was silent for too long: work done twice, nothing missing
- died                       tokens that were unsent when their generator died or fell silent
- doubled, doubled_in_weights  trained twice, by the journal and by what the learner wrote down when
                             it applied a step (read with no code of coordinator or storage)
- orphans, hangs, unresumable  processes that outlived their job; no update for 150 s; runs without
                             an update after three resumes
- failed_ends                runs whose exit code after the Ctrl-C was neither 0 nor 130
- stale_share                of the generated tokens, those that were dropped for their age
- ledger_error_tokens        generated minus the ledger's accounts
- failed, unexplained       trajectories that ended as failed, by reason; those that have none
- images, images_astray      those of prompts, by the journal; others in their store, or such as are
                             damaged (the audit finds those that are lost)
- rolled_back_trained_again  of the tokens that rollbacks undid, the share in the weights
- recovery_s                 from a fault (from its end, where it lasts) to the next update in the
                             weights, by role, where no other fault came first

Disk and network need root on Linux; without, those faults are left out and named. One run is a row
(`--rows`), by engine and seed; runs that have a row are not repeated. Most of a fault is waiting,
so `--jobs` runs share a machine well; their recovery times are meaningless, and left out. Exit
code 1 where anything is lost, doubled, left behind, hung, unresumable or ended with a failure.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, get_args

from benchmarks.kit.command_line import add_engine_option, add_rows_option, command_line
from benchmarks.kit.rows import RESULTS, result_line
from benchmarks.robustness.chaos_faults import KILLS, ROLES, STOPS, Kind, draw
from benchmarks.robustness.chaos_figures import ended_badly, facts, total_figures
from benchmarks.robustness.chaos_job import SMALL, ChaosJob
from benchmarks.robustness.chaos_testbed import open_testbed
from headrace.host.install import ROOT

FAULTS_A_RUN = 20
CHILDREN = {"vllm": ("generator",), "torch": (), "fake": ()}
"""Roles with child processes, by engine, besides reward and environment workers."""
EPISODES = (
    "environment.name=benchmarks.robustness.chaos_job:ManyTurns", "environment.workers=2",
    "environment.max_inserted=96", "reward.answer_marker=null",
)  # fmt: skip
"""Settings of episodes in an environment, instead of rewards."""
AGENTS = (
    "environment.name=agent:benchmarks.robustness.chaos_agent:roaming", *EPISODES[1:],
)  # fmt: skip
"""Settings of agents at an endpoint; its processes and agents alone are killed."""
RANKER = (
    f"model.path={ROOT / 'recipes' / 'models' / 'rewriting-cold'}", "task.kind=rewriting",
    "task.max_terms=3", "task.max_prompt_length=112", "task.max_response_length=24",
    "schedule.window=8", "reward.kind=ranker", "reward.answer_marker=null",
    f"reward.options.model={ROOT / 'recipes' / 'models' / 'sessions-ranker'}",
    "reward.options.reads_history=false", "learner.ranker.lr=1e-4",
)  # fmt: skip
"""Settings of a ranker that gives rewards and is trained along."""
IMAGES = (
    f"model.path={ROOT / 'recipes' / 'models' / 'shapes-cold'}", "task.kind=shapes",
    "task.questions.count=1", "task.max_terms=4", "task.max_prompt_length=64",
    "task.max_response_length=24",
    "schedule.window=8", "schedule.num_generations=4", "reward.kind=number",
    "reward.answer_marker=null",
)  # fmt: skip
"""Settings of prompts with images; each group has its own image."""
WORLDS = {
    "plain": (), "episodes": EPISODES, "agents": AGENTS, "ranker": RANKER, "images": IMAGES,
}  # fmt: skip
OVERRIDES = (
    *SMALL, "generator.max_num_seqs=32", "generator.kv_cache_gib=0.25",
    "checkpoint.every_updates=4", "stop.train_time_s=null", "stop.tokens=100000000",
    "transport.heartbeat_s=1",
)  # fmt: skip
BAD = (
    "lost", "doubled", "doubled_in_weights", "orphans", "hangs", "unresumable",
    "ledger_error_tokens", "failed_ends", "images_astray", "unexplained",
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run what is missing, print the figures; return the exit code."""
    parser = command_line("chaos", __doc__)
    parser.add_argument("--kills", type=int, default=40, help="faults in all")
    add_engine_option(parser, "fake")
    parser.add_argument("--generators", type=int, default=1, help="generators of a run")
    parser.add_argument(
        "--world", choices=WORLDS, default="plain",
        help="episodes: several turns, with an environment; agents: the same by an endpoint; "
        "ranker: it pays, and learns along; images: in all prompts",
    )  # fmt: skip
    parser.add_argument("--first-seed", type=int, default=0, help="of the first run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    add_rows_option(parser, RESULTS / "chaos.jsonl", resumes=True)
    args = parser.parse_args(argv)
    if args.jobs < 1:
        parser.error("--jobs takes 1 or more")
    rows, wanted = args.rows, {}
    for number in range(-(-args.kills // FAULTS_A_RUN)):
        seed = args.first_seed + number
        count = min(FAULTS_A_RUN, args.kills - number * FAULTS_A_RUN)
        key = f"{args.engine}/{args.generators}/{count}/{seed}"
        key += "" if args.world == "plain" else f"/{args.world}"
        wanted[key] = (args.engine, args.generators, seed, count, args.world)
    found = [rows.rows[key] for key in wanted if key in rows.rows]
    lacking = {key: run for key, run in wanted.items() if key not in rows.rows}
    for key, row in _runs(lacking, args.jobs):
        found.append(rows.add(key, {**row, "jobs": args.jobs}))
        if not args.json:
            print(_line(row), flush=True)
    result = {"name": "chaos", "engine": args.engine, **total_figures(found)}
    result["missing"] = {kind: why for row in found for kind, why in row["missing"].items()}
    if args.json:
        print(result_line(result))
    else:
        for name, value in result.items():
            print(f"{name:>26}  {value}")
    return int(any(result[name] for name in BAD))


def _runs(
    wanted: dict[str, tuple[str, int, int, int, str]], jobs: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the row of each run as it ends, with a bounded number of runs at a time."""
    if jobs == 1:
        yield from ((key, one_run(*run)) for key, run in wanted.items())
        return
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    keys = {pool.submit(one_run, *run): key for key, run in wanted.items()}
    try:
        yield from ((keys[done], done.result()) for done in as_completed(keys))
    finally:
        pool.shutdown(cancel_futures=True)


def one_run(
    engine: str, generators: int, seed: int, count: int, world: str = "plain"
) -> dict[str, Any]:
    """Run once with `count` faults drawn by the seed; return the row."""
    judge = "environment" if world in ("episodes", "agents") else "reward"
    roles = [judge if role == "reward" else role for role in ROLES]
    with open_testbed() as testbed:
        server = testbed.database if seed % 2 else None
        without = testbed.missing.keys() | (set() if server else {"freeze_sql", "lose_sql"})
        kinds: list[Kind] = [kind for kind in get_args(Kind) if kind not in without]
        children: tuple[str, ...] = (*CHILDREN[engine], judge)
        if world == "agents":
            often: list[Kind] = ["kill_child"] * 8
            kinds, children, roles = ["kill", *often], (judge,), [judge]
        faults = draw(seed, count, kinds, children=children, roles=roles)
        chosen = (f"seed={seed}", f"generator.engine={engine}", f"generator.count={generators}")
        sql = [f"storage.database={server.url}"] if server else []
        job = ChaosJob(testbed, (*OVERRIDES, *WORLDS[world], *chosen, *sql))
        history = job.play(faults)
        by_kind = [done.fault.kind for done in history.faults]
        return {
            "engine": engine,
            "world": world,
            "seed": seed,
            "faults": len(history.faults),
            "kills": sum(kind in KILLS for kind in by_kind),
            "stops": sum(kind in STOPS for kind in by_kind),
            "kinds": {kind: by_kind.count(kind) for kind in sorted(set(by_kind))},
            "missing": testbed.missing,
            "resumes": history.resumes,
            "ends": history.ends,
            "exit_code": history.last_code,
            "orphans": history.orphans,
            "hangs": history.hangs,
            "unresumable": int(not history.resumable),
            **facts(job.run_dir, history),
        }


def _line(row: dict[str, Any]) -> str:
    counts = {**row, "failed_ends": int(ended_badly(row))}
    bad = ", ".join(f"{counts[name]} {name}" for name in BAD if counts[name]) or "nothing lost"
    return (
        f"seed {row['seed']}: {row['faults']} faults, {row['resumes']} resumes, "
        f"{row['updates']} updates, {row['generated']:,} tokens: {bad}"
    )
