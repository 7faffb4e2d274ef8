"""Process rewards for code (PSGPO, arXiv 2410.17621): labels, the model, and what training gains.

Programs of two to eight lines, of which the test looks at the last alone; the policy gets three
lines of four right. Before the first run a line reward model is made from labels that nobody wrote
(`benchmarks.line_labels`), once. Arms, all of them streaming, with windows of 16 tokens:

  sparse               the test at the end
  dense                and a reward for every line, while the answer is being written
  dense, critic        and the value model starts with the line reward model's weights

In `sparse` lines are scored as well, and the scores earn nothing: all arms wait for the same
scores. Rows also keep the accuracy on programs of two lines (`short`) and of six to eight (`long`),
and what a policy might do instead of getting lines right: lines of an answer, share of comments.

`--part labels` and `--part model` look at the labels and at the line reward model instead, three
seeds each, with rows in a file of their own.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.command_line import command_line, take_rows
from benchmarks.line_labels import HELD_OUT, SAMPLES, WRONG, K, labeler_figures, make_model
from benchmarks.line_labels import model_figures as figures_of_model
from benchmarks.rows import RESULTS, result_line
from benchmarks.seeds import rows_of
from benchmarks.study import main_of
from benchmarks.study_plan import Arm, Column, Row, Study
from headrace.install import ROOT
from storage.queries import export

PARTS_ROWS = RESULTS / "code_prm_parts.jsonl"
MODEL = "runs/critics/straight-line-prm"
"""Relative to the source tree; made when the study is run."""
ASKED = 800
"""Answers of which test A takes its wrong ones."""
SEEDS = 3
SHORT, LONG = (2,), (6, 7, 8)
UPDATES, WARM_UP = 50, 4

SETTINGS = (
    "generator.engine=torch",
    f"reward.sources.lines.options.model={MODEL}",
    "reward.sources.lines.timeout_s=10",
    f"algorithm.value.warmup_updates={WARM_UP}",
    f"stop.updates={UPDATES + WARM_UP}",
    "stop.train_time_s=1200",
    "evaluation.every_updates=10",
    "checkpoint.every_updates=1000",
)
NO_REWARD = ("reward.process.failing=0", "reward.process.passing=0")
NEW_HEAD = ("model.critic_path=null",)


def arm(name: str, *overrides: str) -> Arm:
    """An arm of the recipe."""
    return Arm(name, "recipes/code-prm.toml", (*SETTINGS, *overrides))


ARMS = (
    arm("sparse", *NO_REWARD, *NEW_HEAD),
    arm("dense", *NEW_HEAD),
    arm("dense, critic", f"model.critic_path={MODEL}"),
)


def facts(folder: Path) -> Row:
    """Accuracy by the number of lines, and how answers are written, before training and after."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "answers.jsonl"
        export(folder, "trajectories", None, path, where="purpose = 'eval'")
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    versions = [row["min_version"] for row in rows if row["min_version"] is not None]
    found = {
        when: written([row for row in rows if row["min_version"] == version])
        for when, version in (("before", min(versions)), ("after", max(versions)))
    }
    return {"written": found}


def written(rows: Sequence[Row]) -> dict[str, float]:
    """Figures of some answers to held-out prompts."""
    terms = [int(_object(row["info"])["terms"]) for row in rows]
    parts = [_object(row["reward_parts"]) for row in rows]
    right = [float(row["correct"] or 0.0) for row in rows]
    return {
        **{
            name: _mean([r for r, n in zip(right, terms, strict=True) if n in sizes])
            for name, sizes in (("short", SHORT), ("long", LONG))
        },
        "lines": _mean([part["lines"] for part in parts if "lines" in part]),
        "neutral": _mean([part["neutral"] for part in parts if "neutral" in part]),
    }


def _object(value: Any) -> Row:
    found: Row = json.loads(value) if isinstance(value, str) else value
    return found


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), 4) if values else 0.0


def _after(name: str) -> Callable[[Row], float]:
    return lambda row: float(row["written"]["after"][name])


STUDY = Study(
    "code-prm",
    arms=ARMS,
    seeds=SEEDS,
    reduced_arms=("sparse", "dense, critic"),
    reduced_seeds=1,
    reference="sparse",
    prepare=lambda: make_model(ROOT / MODEL),
    facts=facts,
    columns=(
        Column("short", _after("short"), ".3f"),
        Column("long", _after("long"), ".3f"),
        Column("lines", _after("lines"), ".2f"),
        Column("comments", _after("neutral"), ".3f"),
    ),
)


def part_row(part: str, seed: int) -> Row:
    """The row of test A or B."""
    if part == "labels":
        return {"part": part, "seed": seed, **labeler_figures(ASKED, seed)}
    make_model(ROOT / MODEL)
    return {"part": part, "seed": seed, **figures_of_model(ROOT / MODEL, seed)}


def part_key(part: str, seed: int) -> str:
    """The key of a row; changes with the settings."""
    said = (K, ASKED, WRONG) if part == "labels" else (K, SAMPLES, HELD_OUT)
    return f"{part}/{seed}/{hashlib.sha256(repr(said).encode()).hexdigest()[:8]}"


def parts_table(rows: Mapping[str, Row]) -> str:
    """Markdown of tests A and B, a line a figure; or how to get them."""
    found = [
        (part, [row for row in rows.values() if row["part"] == part])
        for part in ("labels", "model")
    ]
    if not all(mine for _, mine in found):
        return "Not measured yet: `headrace bench code-prm --part labels`, then `--part model`.\n"
    lines = ["| test | figure | by seed |", "|---|---|---|"]
    for part, mine in found:
        for name in figure_names(mine[0]):
            said = ", ".join(f"{row[name]:.3f}" for row in mine)
            lines.append(f"| {part} | {name} | {said} |")
    return "\n".join(lines) + "\n"


def figure_names(row: Row) -> list[str]:
    """The names of a row's figures."""
    return [name for name, value in row.items() if isinstance(value, float) and name != "load"]


def parts(argv: Sequence[str]) -> int:
    """Make the rows of test A or B that are missing, and print them."""
    parser = command_line("code-prm", __doc__)
    parser.allow_abbrev = False
    parser.add_argument(
        "--part", choices=("labels", "model"), required=True, help="test A (labels) or B (model)"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0")
    take_rows(parser, PARTS_ROWS, resumes=True)
    options = parser.parse_args(argv)
    wanted = {
        part_key(options.part, seed): partial(part_row, options.part, seed)
        for seed in range(options.seeds)
    }
    found = rows_of(options.rows, wanted)
    for name in figure_names(found[0]):
        print(f"{name:<28} " + " ".join(f"{row[name]:8.3f}" for row in found))
    if options.json:
        print(result_line({"name": "code-prm", "part": options.part, "rows": found}))
    return 0


def main(argv: list[str]) -> int:
    """Run what is missing, print the table."""
    return parts(argv) if "--part" in argv else main_of(STUDY, __doc__, argv)
