"""How good line labels are, and the line reward model that learns from them (PSGPO).

In: the recipe `code-prm`. Out: figures, and files that are made once: labels, and a line reward
model. The policy answers training prompts at temperature 0.5, at which it gets nine lines of ten
right, wrong answers are labelled with eight completions of a prefix at most, and the task's oracle
says where they really went wrong. The same answers are labelled again by trying every prefix from
the front until one is lost.

The line reward model is trained on all labels by `headrace reward train`, and looked at on
held-out prompts, answered at temperature 1, with the oracle's labels.
"""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.cli import parse
from headrace.commands.label_answers import answers_of
from headrace.commands.labels import Work, labelling_config
from headrace.errors import RunFailedError
from headrace.install import ROOT
from reward_models.figures import of_lines
from reward_models.scorer import LineScorer
from rewards.lines import split_lines
from tasks.policy_check import check_policy
from tasks.straight_line import STRAIGHT_LINE, right_lines

RECIPE = ROOT / "recipes" / "code-prm.toml"
MODEL_RECIPE = ROOT / "recipes" / "reward-models" / "code-lines.toml"
POLICY = ROOT / "recipes" / "models" / "straight-line-cold"
K = 8
SETTINGS = ("generator.engine=torch", "generator.temperature=0.5")
WRONG = 300
"""Wrong answers that test A looks at."""
SAMPLES = 4000
"""Answers that the line reward model learns from."""
HELD_OUT = 512
"""Prompts on which it is looked at."""

Row = dict[str, Any]


class Kept(list[Row]):
    """Rows in memory."""

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.append(row)


async def scan(lines: int, recoverable: Callable[[int], Awaitable[bool]]) -> int:
    """The boundary, looked for from the front."""
    for count in range(1, lines):
        if not await recoverable(count):
            return count - 1
    return max(lines - 1, 0)


def labelled(
    samples: int, seed: int, *, find: Any = None, settings: Sequence[str] = SETTINGS
) -> list[Row]:
    """Rows of `headrace reward label`, in the order of the answers, without a file."""
    words = ["reward", "label", str(RECIPE), "--samples", str(samples), "--out", "unused"]
    arguments = parse([*words, *settings, f"seed={seed}"])
    config = labelling_config(arguments)
    answers = list(answers_of(config, arguments))
    rows, work = Kept(), Work(config, K, find=find)
    asyncio.run(work.label_all(answers, rows, len(answers)))
    if work.failures:
        raise RunFailedError(f"{len(work.failures)} answers have no labels: {work.failures[-1]}")
    return sorted(rows, key=lambda row: int(row["index"]))


def labeler_figures(samples: int, seed: int, *, wrong: int = WRONG) -> Row:
    """Test A on the first `wrong` wrong answers of `samples`."""
    found = [row for row in labelled(samples, seed) if not row["passed"]][:wrong]
    chosen = {row["index"] for row in found}
    scanned = [row for row in labelled(samples, seed, find=scan) if row["index"] in chosen]
    longest = [row for row in found if row["counted"] == 8]
    return {
        "wrong": len(found),
        "exact": _exact(found),
        "exact_from_the_front": _exact(scanned),
        "calls": fmean(row["calls"] for row in found),
        "completions": fmean(row["completions"] for row in found),
        "completions_from_the_front": fmean(row["completions"] for row in scanned),
        "of_all_prefixes_at_8_lines": _mean(row["completions"] / (8 * K) for row in longest),
        "answers_of_8_lines": len(longest),
    }


def _exact(rows: Iterable[Row]) -> float:
    """Share of the answers whose boundary is the oracle's."""
    return _mean(right_lines(row["prompt"], row["completion"]) == row["boundary"] for row in rows)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fmean(listed) if listed else float("nan")


def make_model(folder: Path, *, samples: int = SAMPLES, settings: Sequence[str] = ()) -> None:
    """Labels and the line reward model that learns from them, unless they are there; by the
    commands that a user has."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    labels = folder.with_suffix(".jsonl")
    if not labels.exists():
        _headrace("reward", "label", str(RECIPE), *SETTINGS, "--samples", str(samples),
                  "--k", str(K), "--out", str(labels))  # fmt: skip
    if not (folder / "config.json").exists():
        _headrace("reward", "train", str(MODEL_RECIPE), f"data.path={labels}", *settings,
                  "--plain", "--out", str(folder))  # fmt: skip


def _headrace(*words: str) -> None:
    command = [sys.executable, "-m", "headrace", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        tail = done.stdout.decode(errors="replace")[-2000:]
        raise RunFailedError(f"{' '.join(command)} ended with {done.returncode}:\n{tail}")


def model_figures(folder: Path, seed: int, *, prompts: int = HELD_OUT) -> Row:
    """Test B: scores of lines against the oracle, on held-out prompts."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    policy = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    answers = check_policy(policy, tokenizer, STRAIGHT_LINE, prompts=prompts, seed=seed).answers
    scorer = LineScorer(folder, policy=POLICY)
    scores: list[tuple[float, ...]] = []
    labels: list[tuple[float, ...]] = []
    for answer in answers:
        prompt = str(answer.row.prompt)
        counted = [line for line in split_lines(list(answer.text)) if not line.neutral]
        if not counted:
            continue
        ids = tokenizer.encode(answer.text)
        ends = [line.end for line in counted]
        right = right_lines(prompt, answer.text)
        scores.append(tuple(scorer.lines(tokenizer.encode(prompt), ids, ends)))
        labels.append(tuple(1.0 if place < right else -1.0 for place in range(len(ends))))
    found = of_lines(scores, labels)
    kept = ("examples", "lines", "auc", "mse", "mse_of_mean", "accuracy")
    good = np.mean([label > 0 for row in labels for label in row])
    return {**{name: found[name] for name in kept}, "good": float(good)}
