"""`headrace score` and `select`: the choice of a policy's training prompts (Pre-PPO).

In: a recipe, of which a run without a learner answers every training prompt some times; then that
run, and how many prompts to keep. Out: what the answers earned, which exports and queries of the
run have as the table `scores`; then a JSONL file of the rows with the lowest scores, as the dataset
has them, behind those of a base set and before those that a hash holds out.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config.sections.run import RunConfig
from headrace.config.sections.task import members
from headrace.data.media import data_url, named_image
from headrace.errors import UserError
from headrace.run_files import run_folder
from headrace_cli.commands.data.tables import figure_lines
from headrace_cli.commands.run.evaluate import evaluate_once
from headrace_cli.launch.supervisor import DONE

if TYPE_CHECKING:
    from tasks.datasets.selection import PromptScore
    from tasks.datasets.source import MixtureSource
    from tasks.rows import TaskRow


SCORE = "score"
"""Name of the runs of `headrace score`."""


def score(arguments: argparse.Namespace) -> int:
    """Answer every training prompt some times; print the scores by source of rewards."""
    if arguments.resume is None:
        if arguments.recipe is None:
            raise UserError("name a RECIPE, or --resume RUN")
        arguments.overrides += [
            f"name={SCORE}", f"evaluation.samples={arguments.samples}",
            "evaluation.rows=training", f"evaluation.num_prompts={arguments.prompts}",
        ]  # fmt: skip
    run_dir, code = evaluate_once(arguments)
    if code == DONE:
        from storage.queries import score_summary

        result = {"run_id": run_dir.name, "sources": score_summary(run_dir)}
        print(json.dumps(result) if arguments.json else "\n".join(figure_lines(result)))
    return code


def select(arguments: argparse.Namespace) -> int:
    from tasks.datasets.selection import select_prompts
    from tasks.rows import question_of

    run_dir = _scored_run(Path(arguments.root or "runs"), arguments.name)
    if arguments.out.exists() and not arguments.force:
        raise UserError(f"{arguments.out} is there already; --force replaces it")
    if not (folder := arguments.out.resolve().parent).is_dir():
        raise UserError(f"{arguments.out}: there is no folder {folder}; make it first")
    config = run_folder.read_config(run_dir)
    if arguments.policy and Path(arguments.policy).resolve() != Path(config.model.path).resolve():
        raise UserError(
            f"{run_dir.name} scored {config.model.path}, and not {arguments.policy}: score the "
            "policy that is to be trained"
        )
    source = _source(config, arguments.data)
    rows = {row.id: row for row in source.training_rows(config.evaluation.num_prompts)}
    scores = list(_scores(run_dir, rows, arguments.domain))
    found = select_prompts(scores, arguments.keep, norm=arguments.norm, guard=arguments.guard)
    base = [] if arguments.base is None else _source(config, arguments.base).training_rows(10**9)
    known = {question_of(row.prompt) for row in base}
    chosen = [rows[key] for key in found.kept if question_of(rows[key].prompt) not in known]
    held_out = [
        row
        for name, task in members(config.task).items()
        if task.kind == "dataset" and task.eval_path is None
        # The hash that holds them out takes none of the chosen ones.
        for row in source.domains[name].eval_rows(10**9)
    ]
    everything = [*base, *chosen, *held_out]
    records = (_record(row, folder, members(config.task).get(row.domain)) for row in everything)
    lines = [json.dumps(record, default=str) for record in records]
    run_folder.write_atomically(arguments.out, "".join(f"{line}\n" for line in lines))
    result = {
        "run_id": run_dir.name, "out": str(arguments.out), "rows": len(base) + len(chosen),
        "base": len(base), "held_out": len(held_out),
        "domains": _by_domain(scores, found.kept, found.broken),
    }  # fmt: skip
    print(json.dumps(result) if arguments.json else "\n".join(figure_lines(result)))
    return 0


def _scored_run(root: Path, name: str) -> Path:
    """`latest` is the newest run of `headrace score`."""
    if name != run_folder.LATEST:
        return run_folder.find_run(root, name)
    newest = run_folder.newest_run(
        root, lambda run: run.name.startswith(f"{SCORE}-") and run_folder.is_evaluation(run)
    )
    if newest is None:
        raise UserError(f"no prompts were scored in {root}: `headrace score RECIPE` does it")
    return root / newest


def _source(config: RunConfig, path: str | None) -> "MixtureSource":
    """The run's prompts; `path`: those of another file."""
    from tasks.datasets.source import build_source

    task: Any = config.task
    if path is not None:
        if task.kind != "dataset":
            raise UserError(f"the prompts of {task.kind} are not of one file: leave it out")
        task = task.model_copy(update={"path": path})
    return build_source(task, config.seed)


def _record(row: "TaskRow", folder: Path, task: Any = None) -> dict[str, Any]:
    from tasks.rows import images_in, with_images

    plain = row.prompt if row.plain is None else row.plain
    prompt = with_images(plain, [_written(i, row, folder) for i in images_in(plain)])
    keys = (getattr(task, f"{name}_key", None) or name for name in ("prompt", "answer"))
    told = {"id": row.id, **dict(zip(keys, (prompt, row.answer), strict=True))}
    return told | {key: value for key, value in row.info.items() if not told.get(key)}


def _written(image: Any, row: "TaskRow", folder: Path) -> str:
    """An image as JSON has it. The prompt stays the same one, because it decides what is held out.
    UserError for a path that would mean another file in `folder`."""
    named = named_image(image)
    if isinstance(named, bytes):
        return data_url(named)
    is_path = not str(named).startswith(("data:", "http:", "https:", "file:", "/", "~"))
    if is_path and Path(row.folder).resolve() != folder:
        raise UserError(f"row {row.id} names its image from {row.folder}: put --out there")
    return str(named)


def _scores(
    run_dir: Path, rows: "dict[str, TaskRow]", domain: str | None
) -> "Iterator[PromptScore]":
    """Yield the scores of each prompt. UserError where rows and scores are of different prompts."""
    from storage.queries import prompt_scores
    from tasks.datasets.selection import PromptScore

    for found in prompt_scores(run_dir).to_dict("records"):
        row = rows.get(found["prompt_id"])
        if row is None or row.answer != found["answer"]:
            raise UserError(
                f"{run_dir.name} scored prompt {found['prompt_id']}, which the data does not have: "
                "give --data the file that was scored"
            )
        if domain is not None and domain not in row.info:
            raise UserError(
                f"row {row.id} has no column {domain}; there is: {', '.join(sorted(row.info))}"
            )
        if found["scored"]:
            name = found["reward_source"] if domain is None else row.info[domain]
            figures = (found[key] for key in ("scored", "mean", "lowest", "best", "solved"))
            yield PromptScore(row.id, str(name), *figures)


def _by_domain(
    scores: "list[PromptScore]", kept: list[str], broken: list[str]
) -> list[dict[str, Any]]:
    domain = {score.prompt_id: score.domain for score in scores}
    mean = {score.prompt_id: score.mean for score in scores}
    counts = [Counter(domain[key] for key in ids) for ids in (domain, broken, kept)]
    return [
        {
            "domain": name, "prompts": total, "broken": counts[1][name], "kept": counts[2][name],
            "kept_mean": sum(mean[key] for key in kept if domain[key] == name) / number
            if (number := counts[2][name]) else None,
        }
        for name, total in sorted(counts[0].items())
    ]  # fmt: skip
