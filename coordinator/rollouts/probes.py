"""Probes: what a value model could explain of the returns, measured at an evaluation.

In: the answers of an evaluation. Out: groups whose members go on from a prefix of an answer, all
from the same one; the prefixes of several evaluations with their returns. Promises: prefixes are
drawn at random among all tokens; after a restart the same ones are drawn; the expected tokens of
all probes are at most a quarter of the answers'.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from coordinator.dispatch.prompts import trajectory_seed
from headrace.config.sections.run import RunConfig
from headrace.metrics.attainable import ENOUGH, Prefix
from headrace.protocol.records.record_types import EvaluationDone, GroupIssued
from headrace.trajectory.trajectories import Trajectory, issued_again

CONTINUATIONS = 4
SHARE = 0.25
"""Of the tokens of an evaluation's answers, for all of its probes."""


def may_probe(config: RunConfig) -> bool:
    """Return whether evaluations of a run tell what its value model could explain.

    Not where they sample otherwise than training does, and of episodes."""
    evaluation, generator = config.evaluation, config.generator
    same = evaluation.temperature == generator.temperature and evaluation.top_p == generator.top_p
    learns = config.algorithm.value is not None and not evaluation.only
    return bool(learns and same and evaluation.probes and config.environment is None)


def draw_prefixes(
    answers: Sequence[Trajectory], most: int, seed: str
) -> list[tuple[Trajectory, int]]:
    """Draw at most `most` answers, each with the number of its first tokens that stay.

    As many as fit if each went on for as long as an answer does, on average, from any token."""
    lengths = [answer.length for answer in answers]
    ends = list(accumulate(lengths))
    left = sum(n * (n + 1) / 2 for n in lengths)  # all tokens times the mean number left
    most = min(most, int(SHARE * ends[-1] ** 2 / (CONTINUATIONS * left))) if left else 0
    draw, found = random.Random(seed), list[tuple[Trajectory, int]]()
    for token in (draw.randrange(ends[-1]) for _ in range(most)):
        i = bisect_right(ends, token)
        found.append((answers[i], token - ends[i] + lengths[i]))
    return found


def probe_group(
    group: GroupIssued,
    answer: Trajectory,
    prefix: int,
    number: int,
    seed: int,
    ids: tuple[int, int],
) -> GroupIssued:
    """Return the group that goes on from the first `prefix` tokens of an answer.

    `number`: of the probe, for its seeds. `ids`: its own id and that of its first trajectory."""
    group_id, first = ids
    members = range(CONTINUATIONS)
    return issued_again(
        group, group_id=group_id, position=number, purpose="probe", prefix=prefix,
        prompt_ids=np.concatenate([answer.opening, answer.tokens[:prefix]]),
        trajectory_ids=[first + i for i in members],
        seeds=[trajectory_seed(seed, "probe", number, i) for i in members],
    )  # fmt: skip


def pooled(new: Sequence[Prefix], earlier: Sequence[EvaluationDone]) -> list[Prefix]:
    """Return these prefixes, and those of earlier evaluations, the newest first, until enough."""
    found = list(new)
    for evaluation in reversed(earlier):
        if len(found) >= ENOUGH:
            break
        found += evaluation.continuations
    return found
