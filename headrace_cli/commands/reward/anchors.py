"""`headrace reward anchors`: the best of n answers per prompt, for pairwise rewards.

In: a recipe. Out: a file with one row per prompt (`headrace.data.anchors`): the answer, its score,
who wrote it and who picked it. Answers come from the recipe's generator. They are picked by the
source that scores the prompt, or by another one (`--by`). A source of the kind `pairwise` compares
them with its model, and needs no anchors for that; every other one scores them as in a run. Rows
have the task's columns too: the file is a dataset whose prompts are in the template already.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from headrace.config.sections.reward import RewardConfig, SourceConfig
from headrace.config.sections.run import RunConfig
from headrace.data.tokenizer import decoded
from headrace.errors import RunFailedError, UserError
from headrace.protocol.messages.control import ScoreItem
from headrace_cli.commands.checks.reward_check import policy_tokenizer
from headrace_cli.commands.reward.judges import serve_judges
from headrace_cli.commands.reward.row_file import RowFile
from headrace_cli.commands.reward.sampling import (
    MAX_SKIPS,
    UnjudgedError,
    draw_seed,
    print_result,
    sampling_config,
    side_by_side,
    training_prompts,
)
from headrace_cli.launch.sampler import Sampler, open_sampler

DEFAULT_PROMPTS = 1024
"""Default number of training prompts of a task that generates them."""


@dataclass(frozen=True, slots=True)
class AnchorPrompt:
    """A prompt that gets an anchor. `text` is how the policy sees it."""

    place: int
    row: Any
    ids: list[int]
    text: str
    source: str
    held_out: bool


def anchors(arguments: argparse.Namespace) -> int:
    """Make the anchors and print a summary; 1 where no prompt could get one."""
    if arguments.best_of < 1 or (arguments.prompts is not None and arguments.prompts < 1):
        raise UserError("--best-of and --prompts are at least 1")
    config = sampling_config(arguments)
    selection = AnchorSelection(config, arguments.best_of, arguments.by)
    prompts = selection.prompts(arguments.prompts)
    file = RowFile(arguments.out, selection.settings(prompts))
    began = time.monotonic()
    todo = [prompt for prompt in prompts if prompt.place not in file.rows]
    if todo:
        asyncio.run(selection.pick_all(todo, file, len(prompts)))
    if not file.rows:
        raise RunFailedError(f"no prompt has an anchor; the last: {selection.failures[-1]}")
    rows = list(file.rows.values())
    file.finish(lambda row: True)
    result = {
        "prompts": len(rows),
        "held_out": sum(row["held_out"] for row in rows),
        "without": len(prompts) - len(rows),
        "score": round(sum(row["anchor_score"] for row in rows) / len(rows), 4),
        "sampled_tokens": selection.tokens,
        "seconds": round(time.monotonic() - began, 2),
        "out": str(arguments.out),
    }
    return print_result(result, selection.failures, failed="no anchor", as_json=arguments.json)


class AnchorSelection:
    """Selection of the anchors of all prompts, side by side."""

    def __init__(self, config: RunConfig, count: int, by: str | None) -> None:
        """`count`: answers of a prompt; `by` as in AnchorJudges. UserError: a source cannot
        pick."""
        self._config, self._count, self._by = config, count, by
        self._tokenizer = policy_tokenizer(config)
        self._text = partial(decoded, self._tokenizer)
        self._judges = AnchorJudges(config, by)
        self.failures: list[str] = []
        """Prompts that have no anchor, in words."""
        self.tokens = 0

    def prompts(self, count: int | None) -> list[AnchorPrompt]:
        """Return held-out prompts as in an evaluation, and `count` training prompts, each once.
        `count` None: all of a dataset, else DEFAULT_PROMPTS."""
        from rewards.models.encoding import prompt_ids, rendered_prompt
        from tasks.datasets.source import DatasetSource, build_source

        config, mode = self._config, self._config.model.chat_template
        source = build_source(config.task, config.seed)
        found: dict[str, AnchorPrompt] = {}

        def keep(row: Any, ids: list[int], *, out: bool) -> bool:
            """Keep a prompt; return whether it is new."""
            text = rendered_prompt(self._tokenizer, row.prompt, mode)
            name = self._judges.source_of(row)
            new = AnchorPrompt(len(found), row, ids, text, name, out)
            return found.setdefault(text, new) is new

        for row in source.eval_rows(config.evaluation.num_prompts):
            ids = prompt_ids(self._tokenizer, row.prompt, mode)
            if len(ids) <= config.task.max_prompt_length:
                keep(row, ids, out=True)
        files = source.domains.get("")
        each = len(files.training) if isinstance(files, DatasetSource) else None
        left, repeated = count or each or DEFAULT_PROMPTS, 0
        for row, ids in islice(training_prompts(config, self._tokenizer), each):
            new = keep(row, ids, out=False)
            left, repeated = left - new, 0 if new else repeated + 1
            if not left or repeated == MAX_SKIPS:
                break
        return list(found.values())

    def settings(self, prompts: Sequence[AnchorPrompt]) -> dict[str, Any]:
        """Return the settings that rows depend on."""
        config = self._config
        return {
            "policy": config.model.path,
            "best_of": self._count,
            "temperature": config.generator.temperature,
            "max_response_length": config.task.max_response_length,
            "seed": config.seed,
            "prompts": _digest(repr([prompt.text for prompt in prompts])),
            "by": self._by,
            "reward": _digest(config.reward.model_dump_json()),
        }

    async def pick_all(self, prompts: Sequence[AnchorPrompt], file: RowFile, total: int) -> None:
        """Put a row of every prompt into the file, in the order in which they are done."""
        # One more than fill the engine, so that it writes while others are judged.
        at_once = -(-self._config.generator.seats // self._count) + 1
        async with (
            serve_judges(self._config),
            open_sampler(self._config) as sampler,
            self._judges.at_work(),
        ):

            async def one(prompt: AnchorPrompt) -> str:
                try:
                    file.add(await self._row(prompt, sampler))
                except UnjudgedError as error:
                    self.failures.append(f"row {prompt.row.id}: {error}")
                return f"{sampler.tokens} tokens"

            await side_by_side(prompts, one, at_once=at_once, total=total, title="anchors")
            self.tokens = sampler.tokens

    async def _row(self, prompt: AnchorPrompt, sampler: Sampler) -> dict[str, Any]:
        limit = self._config.task.max_response_length
        seeds = [draw_seed(self._config.seed, prompt.ids, (), i) for i in range(self._count)]
        written = await asyncio.gather(
            *(sampler.sample(prompt.ids, (), max_tokens=limit, seed=seed) for seed in seeds)
        )
        answers = [AnchorCandidate(a.ids, self._text(a.ids)) for a in written if a.finished]
        if not answers:
            raise UnjudgedError(f"none of its {self._count} answers ended within {limit} tokens")
        best = await self._judges.pick(prompt, answers)
        return {
            **prompt.row.info,
            "index": prompt.place,
            "id": prompt.row.id,
            "prompt": prompt.row.prompt,
            "answer": prompt.row.answer,
            "policy_prompt": prompt.text,
            "held_out": prompt.held_out,
            "anchor": answers[best.place].text,
            "anchor_score": best.score,
            "anchor_by": prompt.source,
            "anchor_policy": self._config.model.path,
            "anchor_samples": len(answers),
        }


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class AnchorCandidate(NamedTuple):
    """An answer that may become the anchor."""

    ids: list[int]
    text: str


class AnchorPick(NamedTuple):
    """The place of the best answer, and its score: the reward, or how likely it beats another."""

    place: int
    score: float


class AnchorJudges:
    """Sources that pick: each says which source picks for a prompt, and which answer is best."""

    def __init__(self, config: RunConfig, by: str | None) -> None:
        """`by`: the picking source, if not the prompt's. UserError: a source is missing or cannot
        pick."""
        from rewards.preflight import check_sources
        from tasks.datasets.source import info_columns

        each = config.reward.each()
        if by is not None and by not in each:
            known = ", ".join(sorted(each))
            raise UserError(f"--by {by}: there is no such source of rewards (there are {known})")
        self._by, self._config = by, config
        used = {by: each[by]} if by is not None else each
        for name, source in used.items():
            if source.unit == "group":
                raise UserError(
                    f"the source {name!r} scores groups, and an anchor is picked by scores of "
                    "single answers; name another source in --by"
                )
        self._compare = {n: _comparison(s) for n, s in used.items() if s.kind == "pairwise"}
        scorers = {n: s for n, s in used.items() if n not in self._compare}
        self._scorers: RewardConfig | None = None
        """The section of the sources that score, each of which was loaded once."""
        if scorers:
            reward = config.reward.model_copy(update={"sources": scorers})
            self._scorers = check_sources(reward, lambda: info_columns(config.task))
        self._one_model = asyncio.Lock()
        self._desk: Any = None

    def source_of(self, row: Any) -> str:
        """The source that picks for a row of the task."""
        name = self._by or self._config.source_of(lambda: row.info)
        if name is None:
            raise UserError(f"reward.route leaves row {row.id} without a source")
        return name

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Scoring children live as long as the block."""
        from rewards.labeling.offline_scoring import open_scorer

        if self._scorers is None:
            yield
            return
        async with open_scorer(self._scorers) as self._desk:
            yield

    async def pick(self, prompt: AnchorPrompt, answers: Sequence[AnchorCandidate]) -> AnchorPick:
        """The best answer to a prompt; the first of equally good ones. UnjudgedError where none can
        be judged."""
        compare = self._compare.get(prompt.source)
        if compare is not None:
            texts = [answer.text for answer in answers]
            async with self._one_model:
                return await asyncio.to_thread(compare, prompt.row.prompt, texts)
        items = [self._item(prompt, answer) for answer in answers]
        scores = await asyncio.gather(*map(self._desk.score, items))
        judged = [(s.reward, -place) for place, s in enumerate(scores) if s.status == "ok"]
        if not judged:
            raise UnjudgedError(f"{scores[-1].status}: {scores[-1].error}")
        reward, place = max(judged)
        return AnchorPick(-place, reward)

    def _item(self, prompt: AnchorPrompt, answer: AnchorCandidate) -> ScoreItem:
        assert self._scorers is not None
        row, with_ids = prompt.row, self._scorers.token_ids
        return ScoreItem(
            trajectory_id=0,
            prompt=prompt.text,
            text=answer.text,
            answer=row.answer,
            finished=True,
            num_tokens=len(answer.ids),
            info=json.dumps(row.info, default=str),
            messages="" if prompt.text == row.prompt else json.dumps(row.prompt),
            prompt_ids=np.array(prompt.ids, np.int32) if with_ids else None,
            completion_ids=np.array(answer.ids, np.int32) if with_ids else None,
            source=prompt.source,
        )


def _comparison(source: SourceConfig) -> Callable[[Any, Sequence[str]], AnchorPick]:
    from rewards.kinds import model_folder
    from rewards.models.scorer import PairScorer

    rule = source.options.get("rule")
    scorer = PairScorer(
        model_folder(source.options.get("model"), "pairwise", "pairwise reward model")
    )

    def compare(prompt: Any, texts: Sequence[str]) -> AnchorPick:
        try:
            return best_of(texts, lambda a, b: scorer.pair(prompt, a, b, rule=rule).r)
        except UserError as error:
            raise UnjudgedError(str(error)) from error

    return compare


def best_of(answers: Sequence[str], beats: Callable[[str, str], float]) -> AnchorPick:
    """Pick the best by a knock-out: each answer meets the winner so far.

    `beats(a, b)`: how likely a beats b; of b and a it is one minus that, so that a pair is compared
    once. Where the judge orders the answers, its first one wins, however they stand; n answers take
    at most 2n - 3 comparisons. The score: the mean probability to beat one of the others (1/2 for
    equal ones, and where there are none).
    """
    known: dict[tuple[str, str], float] = {}

    def won(first: str, second: str) -> float:
        if first == second:
            return 0.5
        if (first, second) not in known:
            p = beats(first, second)
            known[first, second], known[second, first] = p, 1.0 - p
        return known[first, second]

    best = 0
    for index, answer in enumerate(answers):
        if won(answer, answers[best]) > 0.5:
            best = index
    others = [*answers[:best], *answers[best + 1 :]]
    return AnchorPick(
        best, sum(won(answers[best], o) for o in others) / len(others) if others else 0.5
    )
