"""`headrace reward try`: a recipe's rewards of answers in a file, without a run."""

import argparse
import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.config.preflight.checks import problems
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError, visible
from headrace_cli.commands.reward.judges import serve_judges
from headrace_cli.commands.run.train import config_from_arguments


def try_rewards(arguments: argparse.Namespace) -> int:
    """Score the answers in a file as a run would, and print each result."""
    arguments.no_dashboard = True
    config = config_from_arguments(arguments)
    if wrong := [line for line in problems(config) if line.startswith("reward.")]:
        raise UserError(wrong[0])
    from headrace_cli.commands.reward.answers import items_of
    from rewards.preflight import check_sources
    from tasks.datasets.answers import read_answers

    task = config.task
    keys = (task.prompt_key, task.answer_key) if task.kind == "dataset" else (None, None)
    rows = read_answers(arguments.file, prompt_key=keys[0], answer_key=keys[1])
    reward = check_sources(config.reward, lambda: {name for row in rows for name in row.info})
    config = config.model_copy(update={"reward": reward})
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as media:
        items = items_of(config, rows, Path(media))
        asyncio.run(_score(config, items, lines, as_json=arguments.json))
    if not arguments.json:
        print(visible("\n".join(_table(lines))))
        print("\n".join(["", *_summary(lines)]))
    return 0


async def _score(
    config: RunConfig, items: Sequence[Any], lines: list[dict[str, Any]], *, as_json: bool
) -> None:
    from rewards.labeling.offline_scoring import score_all

    async with serve_judges(config):
        async for score in score_all(config.reward, items):
            ok = score.status == "ok"
            line = {
                "index": score.trajectory_id,
                "source": items[score.trajectory_id].source,
                "status": score.status,
                "score": score.reward if ok else None,
                "correct": score.correct if ok else None,
                "parts": score.parts,
                "seconds": score.seconds,
                "error": score.error,
            }
            lines.append(line)
            if as_json:
                print(json.dumps(line), flush=True)


def _table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each answer, under their heads."""
    yield f"{'index':>5}  {'source':<12} {'status':<8} {'score':>9}  {'correct':<7} {'seconds':>8}"
    for line in lines:
        score = "-" if line["score"] is None else f"{line['score']:.4g}"
        correct = {None: "-", True: "yes", False: "no"}[line["correct"]]
        parts = ", ".join(f"{name} {value:.4g}" for name, value in line["parts"].items())
        text = " ".join(str(line["error"] or parts).split())
        yield (
            f"{line['index']:>5}  {line['source']:<12} {line['status']:<8} {score:>9}  "
            f"{correct:<7} {line['seconds']:>8.3f}  {text[:200]}"
        ).rstrip()


def _summary(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    statuses = Counter(line["status"] for line in lines)
    yield f"answers   {len(lines)} ({', '.join(f'{n} {name}' for name, n in statuses.items())})"
    scores = [line["score"] for line in lines if line["score"] is not None]
    if scores:
        mean = sum(scores) / len(scores)
        yield f"score     {mean:.4g} on average, {min(scores):.4g} to {max(scores):.4g}"
        right = sum(line["correct"] is True for line in lines)
        yield f"correct   {right} of {len(scores)} that have a score"
    seconds = [line["seconds"] for line in lines]
    yield f"seconds   {sum(seconds) / len(seconds):.3f} on average, {max(seconds):.3f} at most"
