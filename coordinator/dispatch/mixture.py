"""Choice of the next domain of a mixture, and of its next prompt.

In: the task's configuration, and the journal's records of asked prompts and their rewards. Out: for
each new group a domain and the row in it to begin at, and whether a row is asked at all; the shares
asked, trained and solved by domain. Promises: the choice depends on the group's position, the
update and the records alone, so that a coordinator that takes over goes on as the one before; among
n groups in a row a domain has its weight to within about 2 of n. Source: Data scaling (arXiv
2503.22230), mathematics and code first. Changed: the schedule's step is the last update committed,
and bands ask prompts by their pass rate again.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b
from statistics import fmean

import msgspec

from headrace.config.sections.task import TaskConfig, members
from headrace.protocol.records.record_types import GroupIssued, RewardArrived
from headrace.trajectory.account import Account
from headrace.trajectory.trajectories import Trajectory
from headrace.trajectory.windows import Window

_GOLDEN = (5**0.5 - 1) / 2
"""Golden ratio: no number's multiples modulo 1 are spread more evenly."""


class PassRate(msgspec.Struct):
    """Number and total reward of the answers in a prompt's last group."""

    group_id: int
    answers: int = 0
    total: float = 0.0


class MixtureProgress(msgspec.Struct):
    """Journaled progress of a mixture.

    Attributes:
        positions: the next row by domain. asked: training groups since the last update, by domain.
        rates: by prompt; None where no bands need them.
    """

    positions: dict[str, int] = {}
    asked: dict[str, int] = {}
    rates: dict[str, PassRate] | None = None

    def issue(self, record: GroupIssued) -> None:
        """Count a new training group."""
        if record.domain and record.position >= 0:  # no branch of an episode
            self.positions[record.domain] = record.domain_position + 1
            self.asked[record.domain] = self.asked.get(record.domain, 0) + 1

    def score(self, record: RewardArrived, group: GroupIssued) -> None:
        """Add the reward of a training answer to its prompt's rate."""
        assert self.rates is not None, "no bands ask for rates"
        rate = self.rates.get(group.prompt_id)
        if rate is None or rate.group_id != group.group_id:
            rate = self.rates[group.prompt_id] = PassRate(group.group_id)
        if record.reward is not None:
            rate.answers += 1
            rate.total += success(record)


def success(scored: RewardArrived | Trajectory) -> float:
    """Return 1 for a right answer, 0 for a wrong one, else its reward."""
    right, reward = scored.correct, scored.reward
    return float(right if right is not None else reward or 0.0)


class DomainMixture:
    """The domains of a task; a plain task has a single, unnamed one."""

    def __init__(self, task: TaskConfig, seed: int) -> None:
        self._seed = seed
        self._members = members(task)
        self.empty: set[str] = set()
        """Domains without a usable prompt; the others have their share."""
        # Many groups are asked at the same update.
        self._weights = lru_cache(maxsize=1)(
            task.weights if task.kind == "mixture" else lambda _: {"": 1.0}
        )

    def domain_at(self, position: int, update: int) -> str | None:
        """Return the domain of the group at a position; None where no prompt is left."""
        weights = {k: w for k, w in self._weights(update).items() if k not in self.empty}
        # Where the schedule names empty domains alone, the others go on.
        weights = weights if sum(weights.values()) > 0 else dict.fromkeys(weights, 1.0)
        left = (position + 1) * _GOLDEN % 1.0 * sum(weights.values())
        for name, weight in weights.items():
            if left < weight:
                return name
            left -= weight
        return next(reversed(weights), None)

    def asks(self, domain: str, position: int, prompt_id: str, progress: MixtureProgress) -> bool:
        """Return whether the bands of a domain let the prompt at this position be asked."""
        task = self._members[domain]
        rate = (progress.rates or {}).get(prompt_id)
        if task.kind != "dataset" or task.bands is None or rate is None or not rate.answers:
            return True
        text = f"bands/{self._seed}/{domain}/{position}".encode()
        draw = int.from_bytes(blake2b(text, digest_size=8).digest(), "big") / 2**64
        return draw < task.bands.asked(rate.total / rate.answers)


def banded_domains(task: TaskConfig) -> frozenset[str]:
    """Return the domains whose bands need the pass rates of prompts."""
    tasks = members(task).items()
    return frozenset(name for name, t in tasks if t.kind == "dataset" and t.bands is not None)


def asked_shares(task: TaskConfig, progress: MixtureProgress, update: int) -> dict[str, float]:
    """Return, by domain, the share of groups since the last update, if any, and its weight."""
    if task.kind != "mixture":
        return {}
    asked, groups = progress.asked, sum(progress.asked.values())
    return {f"mixture/{name}/weight": weight for name, weight in task.weights(update).items()} | {
        f"mixture/{name}/asked": asked.get(name, 0) / groups for name in task.datasets if groups
    }


def batch_shares(
    task: TaskConfig, account: Account, windows: Iterable[Window], ended: Iterable[Trajectory]
) -> dict[str, float]:
    """Return, by domain, the share of a batch's tokens, and its answers' mean success."""

    def domain(trajectory: Trajectory) -> str:
        return account.groups[trajectory.group_id].domain

    trained, solved = Counter[str](), defaultdict[str, list[float]](list)
    for window in windows:
        trained[domain(account.trajectories[window.trajectory_id])] += window.tokens
    for trajectory in ended:
        if trajectory.reward is not None:
            solved[domain(trajectory)].append(success(trajectory))
    total = trained.total()
    return {f"mixture/{name}/trained": trained[name] / total for name in members(task) if total} | {
        f"mixture/{name}/solved": fmean(answers) for name, answers in solved.items()
    }
