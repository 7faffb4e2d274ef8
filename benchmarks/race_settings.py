"""The race of T-PPO against PPO as data: settings, arms, and what each arm may be tuned in.

In: nothing but the recipes. Out: `SETTINGS`, `ARMS`, `GRIDS`, and `arm_of`, which makes an arm of a
setting at a point of its grid. Every key that a point speaks of is an override, so that a recipe
may take over what was found best without a row becoming another's.

Arms, on the same cores, with the same slots, window and number of trained tokens:

- synchronous       PPO: generate whole responses, train while the generator is idle, repeat
- windowed          T-PPO as published: at most one window of each response between two updates
- whole             a stream: generators never wait for the learner; whole responses are trained
- streaming         the same with T-PPO's windows: responses are trained while they grow
- grpo-synchronous  critic-free, groups of eight, in PPO's schedule
- grpo-streaming    the same in a stream
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.study_plan import Arm

Point = Mapping[str, float]
"""Where an arm stands in its grid: `steps` (of the optimizer in an update, policy and critic), and
factors of what the setting has: `policy_lr`, `critic_lr`, `batch`, `room` (staleness and in-play
bound of a stream, together), `warmup` (answers that the value model sees before the policy moves),
`critic_steps` (of the value model, for each step of the policy: an update's answers cut finer, at
no cost in tokens).
What a point does not name is 1."""
GROUP = 8
LOCKSTEP = ("synchronous", "windowed", "grpo-synchronous")
"""Modes in which generators and learner take turns."""
PAIR = ("synchronous", "streaming")
"""The two arms of the ratio, the one over the other."""


@dataclass(frozen=True, slots=True)
class Engine:
    """How generation uses the cores that training leaves idle: `count` processes, and variables of
    theirs."""

    count: int = 1
    environment: tuple[str, ...] = ()


ONE = "one process"
ENGINES: Mapping[str, Engine] = {
    ONE: Engine(),
    "two processes": Engine(count=2),
}
"""For the arms in turns, whose generator may have all cores; the others have one for it. An engine
of two threads is not among them: the generator gives vLLM's engine one, whatever a variable says.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One task and its sizes. `tokens`: what the policy trains on; `train_time_s`: the most that a
    run may take for it, evaluations apart. `slots` and `in_play` are windows for each one of the
    batch. `spacing`: share of the training time so far between two evaluations, in all arms, and
    `spacing_from_s`: where no arm crosses earlier, that of then.
    `tuning_target`: the accuracy that tuning races to; a run that came there ends.
    `windows` and `tails`: the factors that only this task can say."""

    name: str
    recipe: str
    tokens: int
    train_time_s: float
    tuning_target: float
    window: int
    max_staleness: int
    batch: int = 64
    policy_lr: float = 1e-4
    critic_lr: float = 5e-4
    slots: float = 1.25
    in_play: float = 2.75
    warmup_trajectories: int = 512
    seeds: tuple[int, ...] = (11, 12, 13, 14, 15)
    tuning_seeds: tuple[int, ...] = (101, 102)
    windows: tuple[int, ...] = ()
    tails: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    num_prompts: int = 1024
    spacing: float = 0.1
    spacing_from_s: float = 20.0


SETTINGS = {
    "short": Setting(
        "short",
        "recipes/long-tail.toml",
        tokens=110_000,
        train_time_s=240,
        tuning_target=0.87,
        window=123,
        max_staleness=8,
        windows=(41, 369),
        tails={
            "tail 3": ("task.min_terms=4", "task.max_terms=18", "task.tail_exponent=2.5"),
            "tail 13": ("task.tail_exponent=2.0",),
        },
    ),
    "long": Setting(
        "long",
        "recipes/long-answers.toml",
        tokens=350_000,
        train_time_s=300,
        tuning_target=0.8,
        window=128,
        max_staleness=32,
        policy_lr=1.5e-4,
        # 11 and 12 were looked at before the grids had steps of the value model.
        seeds=(21, 22, 23, 24, 25),
        windows=(64, 256),
    ),
}

_GRPO = (
    "algorithm.name=grpo",
    "algorithm.value=null",
    "algorithm.advantages=null",
    "algorithm.advantages.kind=group",
    "algorithm.advantages.baseline=mean",
    "algorithm.advantages.scale=sample_std",
    "algorithm.aggregate=sample_mean",
    "algorithm.policy_loss.clip_ratio_high=0.2",
    "algorithm.policy_loss.dual_clip=null",
    "schedule.unit=group",
    f"schedule.num_generations={GROUP}",
)
"""As in recipes/algorithms/grpo.toml; a KL term is that of the setting's recipe, in all arms."""
_WHOLE = "schedule.window=null"
# What a learner keeps of earlier windows is of use only where they came from a stream.
_TURNS = "learner.context=full"
ARMS: Mapping[str, tuple[str, ...]] = {
    "synchronous": ("schedule.mode=synchronous", _TURNS),
    "windowed": ("schedule.mode=windowed", _TURNS),
    "whole": ("schedule.mode=streaming", "schedule.unit=trajectory", _WHOLE),
    "streaming": ("schedule.mode=streaming",),
    "grpo-synchronous": ("schedule.mode=synchronous", _TURNS, *_GRPO, _WHOLE),
    "grpo-streaming": ("schedule.mode=streaming", *_GRPO, _WHOLE),
}


@dataclass(frozen=True, slots=True)
class Grid:
    """Where tuning begins, and what it tries of each coordinate, one after the other."""

    start: Point
    alternatives: tuple[tuple[str, tuple[float, ...]], ...]

    @property
    def budget(self) -> int:
        """Points that tuning runs."""
        return 1 + sum(len(values) for _, values in self.alternatives)


_START: Point = {"steps": 2, "policy_lr": 1, "batch": 1}
_WITH_CRITIC: Point = {**_START, "critic_lr": 1}
_TURNS_GRID = Grid(
    _WITH_CRITIC,
    (
        ("steps", (1, 4)),
        ("policy_lr", (0.5, 2)),
        ("batch", (0.5, 2)),
        ("critic_lr", (2,)),
        ("warmup", (0.25,)),
        ("critic_steps", (2, 4)),
    ),
)
_STREAM_GRID = Grid(
    {**_WITH_CRITIC, "room": 1},
    (
        ("steps", (1, 4)),
        ("policy_lr", (0.5, 2)),
        ("batch", (0.5,)),
        ("room", (0.75,)),
        ("critic_lr", (2,)),
        ("warmup", (0.25,)),
        ("critic_steps", (2, 4)),
    ),
)
GRIDS: Mapping[str, Grid] = {
    "synchronous": _TURNS_GRID,
    "windowed": _TURNS_GRID,
    "whole": _STREAM_GRID,
    "streaming": _STREAM_GRID,
    "grpo-synchronous": Grid(
        _START,
        (
            ("steps", (1, 4, 8)),
            ("policy_lr", (0.5, 2, 4, 8)),
            ("batch", (0.25, 0.5, 2)),
        ),
    ),
    "grpo-streaming": Grid(
        {**_START, "room": 1},
        (
            ("steps", (1, 4, 8)),
            ("policy_lr", (0.5, 2, 4, 8)),
            ("batch", (0.25, 0.5)),
            ("room", (0.75,)),
        ),
    ),
}
"""As many points for each arm. A stream's bound takes the place of one batch size; where there is
no critic, a count of steps, a learning rate and a batch more those of its own."""


def overrides(
    setting: Setting, mode: str, point: Point, *, count: int = 1, tuning: bool = False
) -> tuple[str, ...]:
    """What makes the setting's recipe the arm `mode` at `point`, with `count` generators. Tuning
    looks half as often at half the prompts, and no further than to its target, in every arm."""
    batch = round(setting.batch * point["batch"])
    coarse = 2 if tuning else 1
    steps, room = int(point["steps"]), point.get("room", 1.0)
    trained = [
        f"learner.policy.lr={setting.policy_lr * point['policy_lr']:g}",
        f"learner.policy.minibatches={steps}",
    ]
    if "critic_lr" in point:
        trained += [
            f"learner.value.lr={setting.critic_lr * point['critic_lr']:g}",
            f"learner.value.minibatches={steps * int(point.get('critic_steps', 1))}",
            f"algorithm.value.warmup_updates={_warmup_updates(setting, point, batch)}",
        ]
    return (
        *trained,
        f"schedule.batch_windows={batch}",
        f"schedule.window={setting.window}",
        f"schedule.max_staleness={round(setting.max_staleness * room)}",
        f"schedule.max_in_play={round(setting.in_play * batch * room)}",
        f"generator.count={count}",
        f"generator.max_num_seqs={-(-round(setting.slots * batch) // count)}",
        f"stop.tokens={setting.tokens}",
        f"stop.train_time_s={setting.train_time_s:g}",
        "stop.updates=null",
        "checkpoint.every_updates=null",
        "evaluation.before=false",
        f"evaluation.num_prompts={setting.num_prompts // coarse}",
        "evaluation.every_updates=1",
        f"evaluation.spacing={setting.spacing * coarse:g}",
        f"stop.accuracy={setting.tuning_target if tuning else 'null'}",
        *([] if tuning else [f"evaluation.spacing_from_s={setting.spacing_from_s:g}"]),
        *ARMS[mode],
    )


def _warmup_updates(setting: Setting, point: Point, batch: int) -> int:
    answers = setting.warmup_trajectories * point.get("warmup", 1.0)
    return max(1, round(answers) // batch)


def arm_of(
    setting: Setting, mode: str, point: Point, *, engine: str = ONE, tuning: bool = False
) -> Arm:
    """The arm `mode` of the setting at `point`; `engine` for a mode in turns; as it is tuned, or
    as it races."""
    chosen = ENGINES[engine if mode in LOCKSTEP else ONE]
    changed = overrides(setting, mode, point, count=chosen.count, tuning=tuning)
    name = f"{setting.name}/{mode}"
    return Arm(name, setting.recipe, changed, environment=chosen.environment)


def factors(
    setting: Setting, best: Mapping[str, Point], *, engine: str = ONE
) -> dict[str, list[Arm]]:
    """What drives the ratio: by factor, arms that differ from the best of `streaming` in one thing,
    and, where PPO has the same thing, from the best of `synchronous`."""
    found: dict[str, list[Arm]] = {}

    def add(factor: str, label: str, mode: str, point: Point, *more: str) -> None:
        arm = arm_of(setting, mode, point, engine=engine)
        if point != best[mode] or more:
            changed = replace(arm, name=f"{arm.name}, {label}", overrides=(*arm.overrides, *more))
            found.setdefault(factor, []).append(changed)

    for window in setting.windows:
        other = f"schedule.window={window}"
        add("window", f"window {window}", "streaming", best["streaming"], other)
    for room in (0.5, 0.75, 1.5):
        point = {**best["streaming"], "room": room}
        add("staleness", f"room {room:g}", "streaming", point)
    for mode in PAIR:
        for steps in (1, 2, 4):
            add("steps", f"steps {steps}", mode, {**best[mode], "steps": steps})
        for tail, more in setting.tails.items():
            add("tail", tail, mode, best[mode], *more)
        for batch in (0.5, 1, 2):
            add("batch", f"batch {batch:g}", mode, {**best[mode], "batch": batch})
    return found
