"""TRL's GRPO trainer against ours as data: the work of a run, the arms, what each is tuned in.

In: the recipe. Out: `arm_of`, which makes the arm of a mode at a point of its grid for one of the
two parts, and `GRIDS`. Every key that a point speaks of is an override, so that a recipe may take
over what was found best without a row becoming another's. No coordinate changes what is learned.

Arms, on the same two cores:

- trl          TRL's `GRPOTrainer` on the recipe's work
- streaming    the recipe in a stream: its generator does not wait for the learner
- synchronous  the recipe as it is: generate all, train, publish, repeat
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.race_settings import Grid, Point
from benchmarks.study_plan import Arm
from benchmarks.trl_environment import LOCK
from headrace.processes.launch import SPINS

RECIPE = "recipes/algorithms/grpo.toml"
TRL, STREAMING, SYNCHRONOUS = MODES = ("trl", "streaming", "synchronous")
SPEED, RACE = PARTS = ("speed", "race")
UPDATES = 24
"""Of a run whose speed is measured, tuning or not."""
RACE_UPDATES = 60
"""Most updates of a run to the accuracy."""
ACCURACY = 0.75
LIMIT_S = 600.0
"""Most seconds of training in one run."""
WARM_UP_PROMPTS = 128
"""Of the evaluations before and after a run whose speed is measured: nobody starts cold."""
GOMP_SPINS = 300_000
"""How often a thread of GNU's OpenMP looks before it sleeps where nothing is said."""

GRIDS: Mapping[str, Grid] = {
    TRL: Grid(
        # `threads` and `at_once` (completions in a forward pass) are of all processes together;
        # `spins` begins with what our processes have.
        {
            "threads": 2, "spins": SPINS, "processes": 1, "bf16": 1,
            "continuous_batching": 0, "at_once": 64,
        },
        (
            ("spins", (GOMP_SPINS,)),
            ("threads", (1,)),
            ("processes", (2,)),
            ("bf16", (0,)),
            ("continuous_batching", (1,)),
            ("at_once", (32, 16)),
        ),
    ),
    STREAMING: Grid(
        {
            "learner_bf16": 1, "sampler_bf16": 0, "stream_interval": 8, "max_num_seqs": 128,
            "max_in_play": 384, "micro_batch_tokens": 4096,
        },
        (
            ("learner_bf16", (0,)),
            ("sampler_bf16", (1,)),
            ("stream_interval", (16,)),
            ("max_num_seqs", (192,)),
            ("max_in_play", (256,)),
            ("micro_batch_tokens", (2048, 8192)),
        ),
    ),
    SYNCHRONOUS: Grid(
        {
            "threads": 2, "learner_bf16": 1, "sampler_bf16": 0, "stream_interval": 8,
            "generators": 1, "micro_batch_tokens": 4096,
        },
        (
            ("threads", (1,)),
            ("learner_bf16", (0,)),
            ("sampler_bf16", (1,)),
            ("stream_interval", (16,)),
            ("generators", (2,)),
            ("micro_batch_tokens", (2048, 8192)),
        ),
    ),
}  # fmt: skip
"""As many points for each arm."""


@dataclass(frozen=True, slots=True)
class TrlArm(Arm):
    """TRL on the work that recipe and overrides say; `point` is how."""

    point: Point = field(default_factory=dict)

    def digest(self) -> str:
        """Changes with the work, with the point, and with a pin of TRL's environment."""
        facts = (Arm.digest(self), json.dumps(dict(self.point), sort_keys=True))
        text = "\n".join((*facts, LOCK.read_text(encoding="utf-8")))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def arm_of(part: str, mode: str, point: Point, *, updates: int = UPDATES) -> Arm:
    """The arm `mode` at `point` in one of the two parts; `updates` of a run of `SPEED`."""
    name, work = f"{part}/{mode}", work_of(part, updates)
    if mode == TRL:
        return TrlArm(name, RECIPE, work, point=point)
    return Arm(name, RECIPE, (*work, *overrides(mode, point)))


def work_of(part: str, updates: int) -> tuple[str, ...]:
    """What a run does, whatever its arm. `SPEED`: updates without evaluations on the way. `RACE`:
    until two successive evaluations have the accuracy."""
    common = (f"stop.train_time_s={LIMIT_S:g}", "evaluation.before=true")
    if part == SPEED:
        return (
            *common,
            f"stop.updates={updates}",
            "evaluation.after=true",
            f"evaluation.num_prompts={WARM_UP_PROMPTS}",
        )
    return (
        *common,
        f"stop.updates={RACE_UPDATES}",
        f"stop.accuracy={ACCURACY}",
        "evaluation.after=false",
        "evaluation.every_updates=2",
    )


def overrides(mode: str, point: Point) -> tuple[str, ...]:
    """What makes the recipe the arm `mode` of ours at `point`."""
    count = int(point.get("generators", 1))
    of_mode = (
        (f"learner.lockstep_threads={point['threads']}",)
        if mode == SYNCHRONOUS
        else (f"schedule.max_in_play={point['max_in_play']}",)
    )
    return (
        f"schedule.mode={mode}",
        f"learner.precision={'bf16_autocast' if point['learner_bf16'] else 'float32'}",
        f"learner.micro_batch_tokens={point['micro_batch_tokens']}",
        f"generator.dtype={'bfloat16' if point['sampler_bf16'] else 'float32'}",
        f"generator.stream_interval={point['stream_interval']}",
        f"generator.count={count}",
        f"generator.max_num_seqs={int(point.get('max_num_seqs', 128)) // count}",
        *of_mode,
    )
