"""What reward workers cost beside the generator whose answers they score.

In: a recipe. Its generator answers held-out prompts in a real run, whose reward worker scores them
as they come. Out: answers a second, and processor seconds of the worker and its scoring children
for each. Promises: answers are counted while all slots of the generator were full; start-up of
worker and children is no part of the cost; an answer that could not be scored is a RunFailedError.

A policy before training writes the shortest answers, and in an evaluation a generator may use the
learner's core: training finishes fewer answers a second.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine_state import Watch, roles_in
from benchmarks.runs import train
from benchmarks.slow_turns import most_open
from headrace.errors import RunFailedError
from headrace.protocol.records import ChunkArrived, RewardArrived
from storage.journal import read_journal

WORKER = "reward-0"
WARM = 256
"""Answers that are scored before the measurement."""
EVERY_S = 0.25
"""Between two looks at the processes."""


@dataclass(frozen=True)
class Cost:
    """Answers and the seconds in which they ended, processor seconds of worker and children in that
    time, and the most answers that waited for their scores."""

    answers: int
    wall_s: float
    cpu_s: float
    most_waiting: int


def while_full(begun: Iterable[float], ended: Iterable[float], warm: int) -> list[float]:
    """When answers ended, from the first `warm` on and before the last one was begun: as long as a
    prompt waits, no slot is empty."""
    last = max(begun)
    return sorted(at for at in ended if at <= last)[warm:]


def cost(recipe: str, overrides: Sequence[str], prompts: int, root: Path) -> Cost:
    """Have `prompts` held-out prompts answered and scored in a run of their own."""
    only = ["evaluation.only=true", "evaluation.before=true", "evaluation.after=false"]
    asked = [*overrides, *only, f"evaluation.num_prompts={prompts}", "reward.workers=1"]
    watch = Watch(every_s=EVERY_S, keeps=True)
    folder = Path(train(recipe, asked, root=root, name="answers", watch=watch)["folder"])
    records = [record for batch in read_journal(folder / "journal") for _, record in batch]
    chunks = [record for record in records if isinstance(record, ChunkArrived)]
    rewards = [record for record in records if isinstance(record, RewardArrived)]
    if lost := [record for record in rewards if record.status != "ok"]:
        raise RunFailedError(f"an answer was not scored: {lost[0].error}")
    ended = [chunk.at for chunk in chunks if chunk.finish is not None]
    at = while_full((chunk.at for chunk in chunks if chunk.chunk_index == 0), ended, WARM)
    if len(at) < WARM:
        raise RunFailedError(f"{len(at)} answers are too few: raise --prompts")
    start, end = at[0], at[-1]
    return Cost(
        answers=len(at),
        wall_s=end - start,
        cpu_s=watch.role_between(WORKER, roles_in(folder), start, end),
        most_waiting=most_open(ended, (record.at for record in rewards), start, end),
    )
