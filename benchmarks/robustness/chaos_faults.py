"""Faults of a chaos run, as data: what happens to whom, for how long, and when.

In: a seed and what this machine can do. Out: `Fault`s in their order. Nothing is done here.
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
    """How often a kind is drawn, of the sum of all; from how many to how many seconds it lasts."""

    weight: int
    seconds: tuple[float, float]


HEARTBEAT_S = 5.0
"""Seconds after which a silent process counts as gone: some stops and cuts last longer."""
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
"""Roles that start processes of their own: an inference engine, children that score or play."""
SETTLED = 0.7
"""The share of faults before which the run has gone on after the last one; the others come while
it still recovers."""
WAIT_S = 4.0
"""Seconds around that within which a fault comes at any moment."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `role`: whom it is done to; "job" or "machine" where it is done to all. `which`:
    a number that chooses among several processes of the role. `seconds`: how long it lasts.
    `settled`: it waits until the run has gone on; `wait_s`: and so long after that."""

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
    """`count` faults of these kinds. `children`: the roles that have child processes."""
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
                settled=dice.random() < SETTLED,
                wait_s=round(dice.uniform(0.0, WAIT_S), 2),
            )
        )
    return found
