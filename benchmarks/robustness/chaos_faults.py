"""Faults of a chaos run, as data: their kind, role, duration and time.

In: a seed and the kinds that this machine allows. Out: `Fault`s in order. Nothing is done here.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal[
    "kill", "kill_child", "kill_job", "stop", "stop_child", "disk_full", "slow_disk",
    "cut_network", "slow_network", "reset", "freeze_sql", "lose_sql",
]  # fmt: skip


class FaultOdds(NamedTuple):
    """Weight of a kind in the draw, and the range of its duration in seconds."""

    weight: int
    seconds: tuple[float, float]


HEARTBEAT_S = 5.0
"""Seconds until a silent process counts as gone: some stops and cuts last longer."""
KINDS: dict[Kind, FaultOdds] = {
    "kill": FaultOdds(8, (0.0, 0.0)),
    "kill_child": FaultOdds(2, (0.0, 0.0)),
    "kill_job": FaultOdds(1, (0.0, 0.0)),
    "stop": FaultOdds(5, (0.2, 12.0)),
    "stop_child": FaultOdds(1, (0.2, 12.0)),
    "disk_full": FaultOdds(1, (1.0, 6.0)),
    "slow_disk": FaultOdds(1, (1.0, 6.0)),
    "cut_network": FaultOdds(1, (0.2, 12.0)),
    "slow_network": FaultOdds(1, (2.0, 8.0)),
    # One at least, and others every third of a second.
    "reset": FaultOdds(4, (0.0, 3.0)),
    "freeze_sql": FaultOdds(1, (1.0, 12.0)),
    "lose_sql": FaultOdds(1, (1.0, 6.0)),
}
KILLS: tuple[Kind, ...] = ("kill", "kill_child", "kill_job")
STOPS: tuple[Kind, ...] = ("stop", "stop_child")
ROLES = ("coordinator", "learner", "generator", "reward")
WITH_CHILDREN = ("generator", "reward", "environment")
"""Roles with child processes: an inference engine, scorers, environments."""
SETTLED_SHARE = 0.7
"""The share of faults that wait for an update after the last fault."""
MAX_WAIT_S = 4.0
"""Maximum seconds of the further random wait before a fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `role`: its target; "job" or "machine" where that is all.

    `which`: a number that selects among several processes of the role. `seconds`: its duration.
    `settled`: it waits for an update after the last fault; `wait_s`: seconds of further wait."""

    kind: Kind
    role: str
    which: int
    seconds: float
    settled: bool
    wait_s: float


def draw(
    seed: int,
    count: int,
    kinds: Sequence[Kind],
    *,
    children: Sequence[str],
    roles: Sequence[str] = ROLES,
) -> list[Fault]:
    """Draw `count` faults of these kinds. `children`: the roles with child processes."""
    dice = random.Random(seed)
    weights = [KINDS[kind].weight for kind in kinds]
    found = []
    for kind in dice.choices(list(kinds), weights, k=count):
        if kind in ("kill", "stop", "reset"):
            role = dice.choice(list(roles))
        elif kind in ("kill_child", "stop_child"):
            role = dice.choice(list(children))
        else:
            role = "job" if kind == "kill_job" else "machine"
        found.append(
            Fault(
                kind=kind,
                role=role,
                which=dice.randrange(1 << 16),
                seconds=round(dice.uniform(*KINDS[kind].seconds), 2),
                settled=dice.random() < SETTLED_SHARE,
                wait_s=round(dice.uniform(0.0, MAX_WAIT_S), 2),
            )
        )
    return found
