"""Judges that pick anchors: the sources of rewards of a recipe.

In: a recipe, and perhaps the name of the source that picks. Out: `AnchorJudges`, which say which
source picks for a prompt and which of some answers is the best. A source of the kind `pairwise`
compares them with its model, and needs no anchors for that; every other one scores them as in a
run.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from headrace.config.sections.reward import RewardConfig, SourceConfig
from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import Score, ScoreItem
from headrace_cli.commands.reward.sampling import UnjudgedError


class AnchorCandidate(NamedTuple):
    """An answer that may become the anchor."""

    ids: list[int]
    text: str


class AnchorPick(NamedTuple):
    """The place of the best answer, and its score: the reward, or how likely it beats another."""

    place: int
    score: float


Compare = Callable[[Any, Sequence[str]], AnchorPick]


class AnchorJudges:
    """See the module's docstring."""

    def __init__(self, config: RunConfig, by: str | None) -> None:
        """`by`: the picking source, if not the prompt's. UserError: a source is missing or cannot
        pick."""
        reward = config.reward
        each = reward.each()
        if by is not None and by not in each:
            known = ", ".join(sorted(each))
            raise UserError(f"--by {by}: there is no such source of rewards (there are {known})")
        self._by, self._reward, self._task = by, reward, config.task
        used = {by: each[by]} if by is not None else each
        for name, source in used.items():
            if source.unit == "group":
                raise UserError(
                    f"the source {name!r} scores groups, and an anchor is picked by scores of "
                    "single answers; name another source in --by"
                )
        pairwise = {name for name, source in used.items() if source.kind == "pairwise"}
        self._compare = {name: _comparison(used[name]) for name in sorted(pairwise)}
        scorers = {name: source for name, source in used.items() if name not in pairwise}
        self._scorers = self._checked(scorers)
        self._one_model = asyncio.Lock()
        self._desk: Any = None

    def _checked(self, scorers: dict[str, SourceConfig]) -> RewardConfig | None:
        """The section of the sources that score, each of which was loaded once."""
        from rewards.preflight import check_sources
        from tasks.datasets.source import info_columns

        if not scorers:
            return None
        reward = self._reward.model_copy(update={"sources": scorers})
        return check_sources(reward, lambda: info_columns(self._task))

    def source_of(self, row: Any) -> str:
        """The source that picks for a row of the task."""
        name = self._by or self._reward.route_of(self._task.kind, lambda: row.info)
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

    async def pick(
        self,
        source: str,
        row: Any,
        shown: str,
        ids: Sequence[int],
        answers: Sequence[AnchorCandidate],
    ) -> AnchorPick:
        """The best answer to a row, whose prompt the policy sees as `shown`; the first of equally
        good ones. UnjudgedError where none can be judged."""
        compare = self._compare.get(source)
        if compare is not None:
            async with self._one_model:
                return await asyncio.to_thread(compare, row.prompt, [a.text for a in answers])
        items = [self._item(source, row, shown, ids, answer) for answer in answers]
        return _highest(await asyncio.gather(*map(self._desk.score, items)))

    def _item(
        self, source: str, row: Any, shown: str, ids: Sequence[int], answer: AnchorCandidate
    ) -> ScoreItem:
        assert self._scorers is not None
        with_ids = self._scorers.token_ids
        return ScoreItem(
            trajectory_id=0,
            prompt=shown,
            text=answer.text,
            answer=row.answer,
            finished=True,
            num_tokens=len(answer.ids),
            info=json.dumps(row.info, default=str),
            messages="" if isinstance(row.prompt, str) else json.dumps(row.prompt),
            prompt_ids=np.array(ids, np.int32) if with_ids else None,
            completion_ids=np.array(answer.ids, np.int32) if with_ids else None,
            source=source,
        )


def _highest(scores: Sequence[Score]) -> AnchorPick:
    judged = [(score.reward, -place) for place, score in enumerate(scores) if score.status == "ok"]
    if not judged:
        raise UnjudgedError(f"{scores[-1].status}: {scores[-1].error}")
    reward, place = max(judged)
    return AnchorPick(-place, reward)


def _comparison(source: SourceConfig) -> Compare:
    """Return the comparison of a pairwise reward model."""
    from rewards.kinds import model_folder
    from rewards.models.scorer import PairScorer

    rule = source.options.get("rule")
    scorer = PairScorer(
        model_folder(source.options.get("model"), "pairwise", "pairwise reward model")
    )

    def compare(prompt: Any, texts: Sequence[str]) -> AnchorPick:
        try:
            best = best_of(texts, lambda a, b: scorer.pair(prompt, a, b, rule=rule).r)
        except UserError as error:
            raise UnjudgedError(str(error)) from error
        return best

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
