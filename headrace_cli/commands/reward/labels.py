"""`headrace reward label`: labels of answers' lines, to train a line reward model.

In: a recipe, and answers from a file or sampled from its policy. Out: a file with a row an answer:
its lines, a label for each (see `rewards.labeling.line_labels`), and what it took. Completions come
from the recipe's generator, whose engine works on all searches side by side; whole answers are
judged by the recipe's sources of rewards. A prompt has the token ids that a run gives it.
"""

import argparse
import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from headrace.config.sections.run import RunConfig
from headrace.data.tokenizer import decoded
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import EVALUATIONS, ScoreItem
from headrace_cli.commands.checks.reward_check import check_reward, policy_tokenizer
from headrace_cli.commands.reward.answers import items_of
from headrace_cli.commands.reward.judges import serve_judges
from headrace_cli.commands.reward.row_file import RowFile
from headrace_cli.commands.reward.sampling import (
    UnjudgedError,
    draw_seed,
    print_result,
    sampling_config,
    side_by_side,
    training_prompts,
)
from headrace_cli.launch.sampler import Sampler, open_sampler


@dataclass(frozen=True, slots=True)
class AnswerToLabel:
    """Answer to be labelled. `item`: for a judge; `ids` None: still to be sampled, with `seed`."""

    index: int
    prompt: Any
    info: dict[str, Any]
    item: ScoreItem
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...] | None
    finished: bool = True
    seed: int = 0


def answers_of(config: RunConfig, arguments: argparse.Namespace) -> Iterator[AnswerToLabel]:
    """The file's answers to training prompts, or prompts whose answers are still to be sampled."""
    from rewards.models.encoding import prompt_ids
    from tasks.datasets.answers import FinishedAnswer, read_answers

    tokenizer, task = policy_tokenizer(config), config.task
    sampled = arguments.answers is None
    if sampled:
        rows = [
            FinishedAnswer(row.prompt, "", row.answer, row.info, finished=False, prompt_ids=ids)
            for row, ids in islice(training_prompts(config, tokenizer), arguments.samples)
        ]
    else:
        keys = (task.prompt_key, task.answer_key) if task.kind == "dataset" else (None, None)
        every = read_answers(arguments.answers, prompt_key=keys[0], answer_key=keys[1])
        rows = [row for row in every if row.info.get("purpose") not in EVALUATIONS]
        if not rows:
            raise UserError(f"{arguments.answers} has no answers to training prompts")
    for index, (row, item) in enumerate(zip(rows, items_of(config, rows), strict=True)):
        asked, ids = row.prompt_ids, row.completion_ids
        if asked is None:
            asked = prompt_ids(tokenizer, row.prompt, config.model.chat_template)
        if ids is None and not sampled:
            ids = tokenizer(row.completion, add_special_tokens=False)["input_ids"]
        written = None if ids is None else tuple(ids)
        seed = draw_seed(config.seed, asked, (), index)
        yield AnswerToLabel(
            index, row.prompt, row.info, item, tuple(asked), written, row.finished, seed
        )


def label(arguments: argparse.Namespace) -> int:
    """Label the answers and print a summary; 1 where none could be labelled."""
    if (arguments.answers is None) == (arguments.samples is None):
        raise UserError("give the answers: --answers FILE, or --samples N to have them sampled")
    if arguments.k < 1 or (arguments.samples is not None and arguments.samples < 1):
        raise UserError("--k and --samples are at least 1")
    config = labelling_config(arguments)
    answers = list(answers_of(config, arguments))
    file = RowFile(arguments.out, _settings(config, arguments, answers))
    began = time.monotonic()
    todo = [answer for answer in answers if answer.index not in file.rows]
    labeler = AnswerLabeler(config, arguments.k, fenced=arguments.fenced)
    if todo:
        asyncio.run(labeler.label_all(todo, file, len(answers)))
    if not file.rows:
        raise RunFailedError(f"no answer could be labelled; the last: {labeler.failures[-1]}")
    wanted = "revised" if arguments.revised_only else "counted"
    kept = file.finish(lambda row: bool(row[wanted]))
    result = _summary(list(file.rows.values())) | {
        "unlabelled": len(labeler.failures),
        "rows": kept,
        "sampled_tokens": labeler.tokens,
        "seconds": round(time.monotonic() - began, 2),
        "out": str(arguments.out),
    }
    return print_result(result, labeler.failures, failed="not labelled", as_json=arguments.json)


def labelling_config(arguments: argparse.Namespace) -> RunConfig:
    """The recipe, checked as far as it is used here, with the policy that is asked for. Its line
    reward model may be what the labels are for: it is not asked, and neither is a value model."""
    config = sampling_config(arguments)
    for name, source in config.reward.each().items():
        if source.unit == "group":
            raise UserError(
                f"the source {name!r} scores groups, and a completion is judged by itself; label "
                "with sources of the unit trajectory"
            )
    return check_reward(config)


def _settings(
    config: RunConfig, arguments: argparse.Namespace, answers: Sequence[AnswerToLabel]
) -> dict[str, Any]:
    """Return the settings that rows depend on."""
    digest = hashlib.blake2b(digest_size=8)
    for answer in answers:
        digest.update(repr((answer.item.prompt, answer.prompt_ids, answer.ids)).encode())
    return {
        "policy": config.model.path,
        "k": arguments.k,
        "fenced": arguments.fenced,
        "temperature": config.generator.temperature,
        "max_response_length": config.task.max_response_length,
        "seed": config.seed,
        "answers": digest.hexdigest(),
        "reward": hashlib.blake2b(config.reward.model_dump_json().encode()).hexdigest()[:16],
    }


class AnswerLabeler:
    """Labeler of all answers of one command, side by side."""

    def __init__(self, config: RunConfig, k: int, *, fenced: bool | None = None) -> None:
        self._config, self._k, self._fenced = config, k, fenced
        self._text = partial(decoded, policy_tokenizer(config))
        self.failures: list[str] = []
        """Answers that could not be labelled, in words."""
        self.tokens = 0

    async def label_all(self, answers: Sequence[AnswerToLabel], file: RowFile, total: int) -> None:
        """Put a row of every answer into the file, in the order in which they are done."""
        from rewards.labeling.line_labels import PrefixLabeler
        from rewards.labeling.offline_scoring import open_scorer

        capacity = self._config.generator.seats
        async with (
            serve_judges(self._config),
            open_sampler(self._config) as sampler,
            open_scorer(self._config.reward) as desk,
        ):

            async def passes(row: AnswerToLabel, ids: Sequence[int], finished: bool) -> bool:
                score = await desk.score(self._item(row, ids, finished=finished))
                if score.status != "ok":
                    raise UnjudgedError(f"{score.status}: {score.error}")
                return score.correct

            complete = self._completer(sampler)
            # Few answers leave room for several completions of a prefix at a time.
            at_once = min(self._k, max(1, capacity // len(answers)))
            labeler: PrefixLabeler[AnswerToLabel] = PrefixLabeler(
                complete, passes, k=self._k, at_once=at_once
            )

            async def one(answer: AnswerToLabel) -> str:
                try:
                    file.add(await self._row(answer, labeler, passes, sampler))
                except UnjudgedError as error:
                    self.failures.append(f"answer {answer.index}: {error}")
                return f"{labeler.completions} completions"

            await side_by_side(answers, one, at_once=capacity, total=total, title="answers")
            self.tokens = sampler.tokens

    def _completer(self, sampler: Sampler) -> Any:
        """The policy, as a labeler asks it."""
        from rewards.labeling.line_labels import Completion

        async def one(prompt: Sequence[int], prefix: Sequence[int], number: int) -> Completion:
            seed = draw_seed(self._config.seed, prompt, prefix, number)
            room = self._config.task.max_response_length - len(prefix)
            if room < 1:
                return Completion((), False)
            written = await sampler.sample(prompt, prefix, max_tokens=room, seed=seed)
            return Completion(written.ids, written.finished)

        async def complete(
            prompt_ids: Sequence[int], prefix_ids: Sequence[int], n: int, *, first: int
        ) -> list[Completion]:
            numbers = range(first, first + n)
            return await asyncio.gather(*(one(prompt_ids, prefix_ids, i) for i in numbers))

        return complete

    async def _row(
        self, answer: AnswerToLabel, labeler: Any, passes: Callable[..., Any], sampler: Sampler
    ) -> dict[str, Any]:
        from rewards.answers.line_ends import cut_like, split_lines

        task = self._config.task
        if len(answer.prompt_ids) > task.max_prompt_length:
            raise UnjudgedError(f"its prompt has {len(answer.prompt_ids)} tokens")
        if answer.ids is None:
            written = await sampler.sample(
                answer.prompt_ids, (), max_tokens=task.max_response_length, seed=answer.seed
            )
            answer = replace(answer, ids=tuple(written.ids), finished=written.finished)
        assert answer.ids is not None
        if len(answer.ids) > task.max_response_length:
            raise UnjudgedError(f"it has {len(answer.ids)} tokens")
        lines = split_lines([self._text([i]) for i in answer.ids], fenced=self._fenced)
        passed = await passes(answer, answer.ids, answer.finished)
        key = (answer.item.source, answer.item.answer, answer.item.info)
        found = await labeler.label(
            answer, answer.prompt_ids, answer.ids, lines, passed=passed, key=key
        )
        text = self._text(answer.ids)
        return {
            "index": answer.index,
            "prompt": answer.prompt,
            "completion": text,
            "answer": answer.item.answer,
            "passed": passed,
            "lines": cut_like(lines, text),
            "labels": list(found.labels),
            "boundary": found.boundary,
            "counted": found.counted,
            "revised": found.revised,
            "calls": found.calls,
            "completions": found.completions,
            "finished": answer.finished,
            "ends": [line.end for line in lines],
            "prompt_ids": list(answer.prompt_ids),
            "completion_ids": list(answer.ids),
            "info": json.dumps(answer.info, default=str),
        }

    def _item(self, answer: AnswerToLabel, ids: Sequence[int], *, finished: bool) -> ScoreItem:
        return msgspec.structs.replace(
            answer.item,
            text=self._text(ids),
            finished=finished,
            num_tokens=len(ids),
            completion_ids=np.array(ids, np.int32) if self._config.reward.token_ids else None,
        )


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    labels = [each for row in rows for each in row["labels"]]
    return {
        "answers": len(rows),
        "passed": sum(row["passed"] for row in rows),
        "revised": sum(row["revised"] for row in rows),
        "lines": len(labels),
        "good": labels.count(1),
        "bad": labels.count(-1),
        "neutral": labels.count(None),
        "calls": sum(row["calls"] for row in rows),
        "completions": sum(row["completions"] for row in rows),
    }
