"""Bias and variance of EGAE on frozen policies (study 4, second half).

Two policies on the demonstration's task: the cold-started one, and the same after 20 updates of
T-PPO, which writes longer answers. For each a value model is pretrained on the policy as it is, by
`headrace train ... stop.after_warmup=true`, and taken as it was after 2 updates (barely trained)
and after 24. States lie on the policy's own trajectories where it has a choice (entropy of 0.2 nats
or more), equally many in five strata of position. From each the policy writes on many times, once
with the action taken there held fixed and once without: the difference of the mean returns is the
advantage, with a known standard error.

The same continuations go through `learner.advantages`. The window that holds t begins at a
multiple of W and is cut at its end, W = 240 being the longest response: no cut, GAE. A
continuation that ends inside the window is finished. Three rules at the cut, lambda 0.95 and 1.

A row holds, for each W, rule and lambda, and for states in the last quarter of their window
(`near`), before it (`far`) and all of them, each with a 95% interval over states:

  bias               mean over states of E[estimate] - advantage
  rms_bias           its root mean square over states
  rms_gradient_bias  the same without what depends on the state alone (a baseline)
  spread             standard deviation of the estimate over continuations of one state and action
  rms_advantage      root mean square of the advantage itself, to compare with
  correlation        of E[estimate] with the advantage over states
  cut_share          continuations that the window cuts

All are freed of the Monte-Carlo noise of both sides; how is said in
`benchmarks/estimator_error.py`.
"""

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.command_line import command_line, take_rows
from benchmarks.egae_estimates import ESTIMATORS, Estimator, Sampled, is_near, state_terms
from benchmarks.estimator_error import summary
from benchmarks.frozen_policy import LEAST_ENTROPY, STRATA, TERMS, Critic, FrozenPolicy
from benchmarks.rows import RESULTS, Rows, result_line
from benchmarks.runs import series, train
from benchmarks.study_settings import PRETRAINING, small
from headrace.install import ROOT

Row = dict[str, Any]

RECIPE = "recipes/algorithms/tppo.toml"
COLD = ROOT / "recipes" / "models" / "chain-sums-cold"
POLICIES = {"cold": 0, "after 20 updates": 20}
CRITICS = {"barely trained": 2, "well trained": 24}
NO_EVALUATION = (
    "evaluation.before=false",
    "evaluation.after=false",
    "evaluation.every_updates=null",
)
ROWS = RESULTS / "egae_bias.jsonl"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is sampled."""

    states: int
    continuations: int


FULL, REDUCED = Size(100, 64), Size(50, 32)
SEEDS = 3


def sampled(policy: FrozenPolicy, size: Size, label: str) -> list[Sampled]:
    """States and continuations of a policy; the value model has no part in them."""
    states = watched(policy.states(size.states), f"{label}: continuations")
    return [Sampled(state, *policy.rollouts(state, size.continuations)) for state in states]


def estimator_figures(states: Sequence[Sampled], critic: Critic, label: str) -> list[Row]:
    """Figures of every estimator, by distance to the cut."""
    found = [state_terms(one, critic) for one in watched(states, f"{label}: estimates")]
    lines = []
    for estimator in ESTIMATORS:
        near = [is_near(one.state.position, estimator.window) for one in states]
        picked = {
            "all": [True] * len(states), "near": near, "far": [not one for one in near]
        }  # fmt: skip
        for where, mask in picked.items():
            group = [one[estimator] for one, inside in zip(found, mask, strict=True) if inside]
            if len(group) > 1:
                figures = summary(group)
                lines.append({**asdict(estimator), "where": where, "states": len(group), **figures})
    return lines


def trained(label: str, overrides: Sequence[str], *, updates: int, root: Path) -> Path:
    """The folder of a run of RECIPE that has a checkpoint at `updates`; one that is in `root`
    already, by the same recipe and overrides, is not run again."""
    said = "\n".join(((ROOT / RECIPE).read_text(encoding="utf-8"), *overrides))
    name = f"{label}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"
    there = sorted(root.glob(f"{name}-*/"))
    for folder in there:
        if (folder / "checkpoints" / f"step_{updates}" / "manifest.json").exists():
            return folder
    found = train(str(ROOT / RECIPE), overrides, root=root, name=f"{name}-{len(there)}")
    return Path(found["folder"])


def reinforced(updates: int, seed: int, root: Path) -> Path:
    """The policy after `updates` of T-PPO, as a model folder."""
    settings = small(pretraining=PRETRAINING, updates=updates)
    overrides = [*settings, *NO_EVALUATION, "schedule.mode=windowed", f"seed={seed}"]
    last = PRETRAINING + updates
    folder = trained(f"policy-{updates}-{seed}", overrides, updates=last, root=root)
    return folder / "checkpoints" / f"step_{last}" / "policy"


def pretraining(policy: Path, seed: int) -> tuple[str, ...]:
    """Overrides of one run whose checkpoints hold the value models of all CRITICS."""
    every = min(CRITICS.values())
    return (
        *small(pretraining=max(CRITICS.values())),
        *NO_EVALUATION,
        f"seed={seed}",
        f"model.path={policy}",
        "schedule.mode=synchronous",
        "stop.after_warmup=true",
        f"checkpoint.every_updates={every}",
        f"checkpoint.keep_last={max(CRITICS.values()) // every + 1}",
    )


def critics(policy: Path, label: str, seed: int, root: Path) -> Iterator[tuple[str, Critic, Row]]:
    """Each value model with its name and what its training said."""
    name = f"critic-{label.replace(' ', '-')}-{seed}"
    last = max(CRITICS.values())
    folder = trained(name, pretraining(policy, seed), updates=last, root=root)
    name = "critic/vf_explained_var"
    metrics = series(folder, [name])
    # An update whose answers were all right or all wrong has none.
    explained = dict(zip(metrics["update"], metrics[name], strict=True))
    for critic, updates in CRITICS.items():
        told = {"critic_updates": updates, "explained_variance": explained.get(updates)}
        yield critic, Critic(folder / "checkpoints" / f"step_{updates}" / "critic"), told


def key(policy: str, critic: str, seed: int, size: Size) -> str:
    """The key of a row; changes with the recipe, the settings and the size."""
    said = [(ROOT / RECIPE).read_text(encoding="utf-8"), *pretraining(COLD.relative_to(ROOT), seed)]
    chosen = (size, POLICIES[policy], CRITICS[critic], ESTIMATORS, LEAST_ENTROPY, STRATA, TERMS)
    said += [str(part) for part in chosen]
    digest = hashlib.sha256("\n".join(said).encode()).hexdigest()[:8]
    return f"{policy}/{critic}/{seed}/{digest}"


def run(policy: str, seed: int, size: Size, rows: Rows, root: Path) -> None:
    """Make the rows of one policy and seed: train, sample once, judge with each value model."""
    updates = POLICIES[policy]
    folder = reinforced(updates, seed, root) if updates else COLD
    states = sampled(FrozenPolicy(folder, seed=seed), size, policy)
    lengths = [one.state.position + len(tokens) for one in states for tokens in one.free.tokens]
    for critic, model, told in critics(folder, policy, seed, root):
        if key(policy, critic, seed, size) in rows.rows:
            continue
        row = {
            "policy": policy,
            "critic": critic,
            "seed": seed,
            "continuations": size.continuations,
            "positions": [one.state.position for one in states],
            "mean_length": round(float(np.mean(lengths)), 1),
            **told,
            "estimators": estimator_figures(states, model, f"{policy}, {critic}"),
        }
        rows.add(key(policy, critic, seed, size), row)
        print(f"{policy}, value model {critic}, seed {seed}: {len(states)} states", flush=True)


def watched(items: Sequence[Any], label: str) -> Iterator[Any]:
    """The items, with a bar on a terminal."""
    console = Console(stderr=True)
    yield from track(items, label, console=console, disable=not console.is_terminal)


def pairs() -> list[tuple[str, str]]:
    """Every policy with every value model."""
    return [(policy, critic) for policy in POLICIES for critic in CRITICS]


def values_of(
    rows: Sequence[Row], pair: tuple[str, str], estimator: Estimator, figure: str, where: str
) -> list[float]:
    """A figure of a policy with a value model, one value a seed that has it."""
    wanted = {**asdict(estimator), "where": where}
    return [
        line[figure][0]
        for row in rows
        if (row["policy"], row["critic"]) == pair
        for line in row["estimators"]
        if wanted.items() <= line.items() and line[figure][0] is not None
    ]


def show(rows: Sequence[Row]) -> None:
    """A table a row."""
    for row in rows:
        title = f"{row['policy']}, value model {row['critic']}, seed {row['seed']}"
        shown = Table(title=title, title_justify="left")
        for column in ("W", "rule", "lambda", "where", "cut", "bias", "rms bias", "gradient part",
                       "spread", "rms advantage", "correlation"):  # fmt: skip
            shown.add_column(column, no_wrap=True)
        for line in row["estimators"]:
            names = ("cut_share", "bias", "rms_bias", "rms_gradient_bias", "spread",
                     "rms_advantage", "correlation")  # fmt: skip
            shown.add_row(
                *(str(line[name]) for name in ("window", "boundary", "lam", "where")),
                *("-" if line[name][0] is None else f"{line[name][0]:.3f}" for name in names),
            )
        Console(width=None if sys.stdout.isatty() else 140).print(shown)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = command_line("egae-bias", __doc__)
    parser.add_argument("--reduced", action="store_true", help="fewer states and continuations")
    parser.add_argument("--seeds", type=int, help="seeds of training and sampling (3; reduced: 1)")
    parser.add_argument("--states", type=int, help="states of each policy, instead of the study's")
    parser.add_argument("--continuations", type=int, help="2 or more from each state, twice")
    take_rows(parser, ROWS, resumes=True)
    parser.add_argument("--keep", type=Path, help="keep the run folders here, and use those here")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Make the rows that are missing, print the tables."""
    options = parse(argv)
    usual = REDUCED if options.reduced else FULL
    size = Size(options.states or usual.states, options.continuations or usual.continuations)
    seeds = range(options.seeds or (1 if options.reduced else SEEDS))
    rows = Rows(options.rows)
    torch.set_num_threads(1)
    for seed in seeds:
        for policy in POLICIES:
            if all(key(policy, critic, seed, size) in rows.rows for critic in CRITICS):
                continue
            scratch = Path(options.keep or tempfile.mkdtemp(prefix="headrace-egae-bias-"))
            try:
                run(policy, seed, size, rows, scratch)
            finally:
                if options.keep is None:
                    shutil.rmtree(scratch)
    keys = [key(*pair, seed, size) for seed in seeds for pair in pairs()]
    found = [rows.rows[one] for one in keys]
    show(found)
    if options.json:
        print(result_line({"name": "egae-bias", "rows": found}))
    return 0
