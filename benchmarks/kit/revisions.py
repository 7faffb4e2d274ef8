"""Effect of code changes on learning: one recipe at several commits, by seed.

Each commit is checked out into a folder of its own below `.cache/revisions/`, and its own `headrace
train` runs there, with the packages of this environment. For each seed the commits take turns, in a
new random order; a row holds the accuracy before and after, the training seconds, tokens and idle
shares as that commit's own `headrace show --json` prints them. Rows are appended to `--rows` under
`revisions/<recipe>/<overrides>/<commit>/<seed>`; existing ones are not run again. `speed` is the
last commit's trained tokens per second over the first's, `difference` its accuracy after training
less the first's where runs end with an evaluation: mean and range over seeds. The quickstart takes
some five minutes per run on two idle cores.
"""

import json
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.rows import RESULTS, ResultFile, result_line
from benchmarks.kit.runs import train
from headrace.errors import UserError
from headrace.host.install import ROOT

KEPT = (
    "updates", "train_time_s", "time_to_first_update_s", "wall_s", "eval", "reward",
    "response_length", "tokens", "trajectories", "staleness", "idle_share",
)  # fmt: skip
FOLDER = ROOT / ".cache" / "revisions"


def checkout(revision: str) -> tuple[str, Path]:
    """Check a commit out; return its short name and folder. UserError when git fails."""
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}")[:12]
    tree = FOLDER / commit
    if not tree.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
    return commit, tree


def _git(*arguments: str) -> str:
    answer = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if answer.returncode != 0:
        raise UserError(f"git {' '.join(arguments)}: {answer.stderr.strip()}")
    return answer.stdout.strip()


def measure(
    recipe: str, overrides: list[str], revisions: list[str], seeds: list[int], rows: ResultFile
) -> dict[str, Any]:
    """Run all seeds at all commits that `rows` lacks; return the comparison."""
    trees = dict(map(checkout, revisions))
    first, last = next(iter(trees)), next(reversed(trees))
    name, runs = Path(recipe).stem, FOLDER / "runs"
    runs.mkdir(parents=True, exist_ok=True)

    def key_of(commit: str, seed: int) -> str:
        return "/".join(("revisions", name, *overrides, commit, str(seed)))

    for seed in seeds:
        for commit in random.sample(sorted(trees), len(trees)):
            if (key := key_of(commit, seed)) in rows.rows:
                continue
            load = os.getloadavg()[0]
            run, chosen = f"{name}-{commit}-{seed}", [*overrides, f"seed={seed}"]
            root = Path(tempfile.mkdtemp(dir=runs))  # Beside those that were broken off.
            summary = train(recipe, chosen, root=root, name=run, tree=trees[commit])
            figures = {
                "recipe": name,
                "revision": commit,
                "seed": seed,
                "overrides": overrides,
                "load_before": round(load, 2),
                **summary["machine_state"],
                **{figure: summary.get(figure) for figure in KEPT},
            }
            row = rows.add(key, figures)
            ends = [
                f"{a:.3f}" for end in ("before", "after") if (a := row["eval"][end]) is not None
            ]
            print(
                f"seed {seed}  {commit}  accuracy {' -> '.join(ends) or 'not measured'}  "
                f"{_speed(row):,.0f} tokens a second for {row['train_time_s']:.0f} s",
                flush=True,
            )
    of_commit = {commit: [rows.rows[key_of(commit, seed)] for seed in seeds] for commit in trees}
    pairs = list(zip(of_commit[first], of_commit[last], strict=True))
    found: dict[str, Any] = {"name": "revisions", "recipe": name, "seeds": seeds}
    ratios = [_speed(b) / _speed(a) for a, b in pairs]
    figures = {"speed": ratios}
    if all(row["eval"]["after"] is not None for pair in pairs for row in pair):
        figures["difference"] = [b["eval"]["after"] - a["eval"]["after"] for a, b in pairs]
    for figure, each in figures.items():
        found[figure] = round(statistics.mean(each), 4)
        found |= {f"{figure}_min": round(min(each), 4), f"{figure}_max": round(max(each), 4)}
    return found


def _speed(row: Mapping[str, Any]) -> float:
    """Return the policy's trained tokens per second of training."""
    return float(row["tokens"]["trained_policy"] / row["train_time_s"])


def main(argv: list[str]) -> int:
    """Measure and print."""
    parser = command_line("revisions", __doc__)
    parser.add_argument("revisions", nargs="+", help="commits, the one to compare against first")
    parser.add_argument("--recipe", default="recipes/quickstart.toml", help="what is trained")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="of each revision"
    )
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides", help="of the recipe"
    )
    add_rows_option(parser, RESULTS / "revisions.jsonl", resumes=True)
    arguments = parser.parse_args(argv)
    chosen = (arguments.recipe, arguments.overrides, arguments.revisions, arguments.seeds)
    result = measure(*chosen, arguments.rows)
    print(result_line(result) if arguments.json else json.dumps(result, indent=2))
    return 0
