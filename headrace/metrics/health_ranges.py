"""Healthy ranges of metrics, and the alerts raised outside them.

In: the values of metrics by update. Out: `Alert`s, pure. `BANDS` is the one place where bands are
kept; charts draw them, the dashboard and `headrace show` list what `alerts` finds. Promises: one
alert for each time that a metric leaves its band for long enough, and none for a single odd update
or for one that comes back for a moment (`BandCrossing`, which the monitors of rewards use too).

A metric has a band only where the literature or our own documentation says what is healthy, and
where that holds whatever is trained. NAME in a name is as in `headrace.metrics.registry`.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headrace.metrics.registry import info_of, pattern_of

Side = Literal["under", "over"]
SIDES: tuple[Side, ...] = ("under", "over")
Turn = Literal["begins", "ends"]
Series = Mapping[str, Sequence[tuple[int, float | None]]]
"""By metric its (update, value), in order of updates; None: not known, neither in nor out."""


class HealthBand(NamedTuple):
    """`label` names the figure in a sentence. The band is `low` to `high`; where `times` is given,
    it ends at this multiple of the usual value, the median of the examined updates. A metric that
    is outside for `updates` in a row has left it, and is back after as many inside, and at least
    MIN_UPDATES_BACK. `why` says what that means and what helps."""

    label: str
    why: str
    updates: int
    low: float | None = None
    high: float | None = None
    times: float | None = None


class BandLimits(NamedTuple):
    """The ends of a band; None: there is none on that side."""

    low: float | None
    high: float | None

    def side(self, value: float) -> Side | None:
        """On which side of the band a value is; None: inside."""
        if self.low is not None and value < self.low:
            return "under"
        return "over" if self.high is not None and value > self.high else None

    def bound(self, side: Side) -> float:
        """The end on that side."""
        found = self.low if side == "under" else self.high
        assert found is not None
        return found


BANDS: dict[str, HealthBand] = {
    # DAPO (arXiv 2503.14476) section 3.1; The Entropy Mechanism of RL (arXiv 2505.22617).
    "actor/entropy": HealthBand(
        "entropy",
        "the policy hardly tries anything new, and what it gets wrong it goes on getting wrong. A "
        "larger clip_ratio_high, a KL penalty or a smaller learning rate keeps it from falling",
        updates=20,
        low=0.02,
    ),
    "actor/grad_norm": HealthBand(
        "gradient norm of the policy",
        "gradients of ten times the usual size point at a few tokens or a broken batch: look at "
        "ratios, rewards and lengths of these updates",
        updates=3,
        times=10,
    ),
    "actor/pg_clipfrac": HealthBand(
        "clipped share",
        "so many tokens are clipped that the update moves the policy far from what sampled them: "
        "fewer epochs or minibatches, or a smaller learning rate",
        updates=10,
        high=0.2,
    ),
    "actor/ppo_kl": HealthBand(
        "KL within updates",
        "an update moves the policy further than the clipped loss is meant for: a smaller learning "
        "rate, or fewer optimizer steps an update",
        updates=10,
        high=0.1,
    ),
    "actor/skipped_steps": HealthBand(
        "skipped steps of the policy",
        "a loss or gradient was not finite, and the step was thrown away",
        updates=1,
        high=0,
    ),
    "critic/grad_norm": HealthBand(
        "gradient norm of the value model",
        "gradients of ten times the usual size: look at the rewards and value errors of these "
        "updates",
        updates=3,
        times=10,
    ),
    "critic/skipped_steps": HealthBand(
        "skipped steps of the value model",
        "a loss or gradient was not finite, and the step was thrown away",
        updates=1,
        high=0,
    ),
    # 1 - Var[return - value] / Var[return]: below 0 a constant would do better.
    "critic/vf_explained_var": HealthBand(
        "explained variance",
        "the critic explains the returns worse than a constant would, and what rests on it misleads"
        ": more algorithm.value.warmup_updates, or a larger learning rate of the value model",
        updates=20,
        low=0,
    ),
    # PAG (arXiv 2506.10406) section 3.2: with credit across turns all verdicts become one.
    "environment/right_recall": HealthBand(
        "recall of right answers",
        "the policy calls right answers wrong, so that it can revise them: end credit with each "
        'turn (algorithm.turns = "turn"), and look whether first answers are spoiled',
        updates=20,
        low=0.1,
    ),
    "environment/wrong_recall": HealthBand(
        "recall of wrong answers",
        "the policy calls every answer right and revises none: give it more wrong ones to judge "
        "(environment.options.given), or a smaller learning rate",
        updates=20,
        low=0.1,
    ),
    # DAPO section 3.4: truncated answers are noise in the reward.
    "response_length/clip_ratio": HealthBand(
        "answers cut at the limit",
        "answers that are cut are scored for what they could not finish: a larger "
        "task.max_response_length, or algorithm.overlong",
        updates=20,
        high=0.1,
    ),
    # DAPO section 3.2: answers that all earn the same have no advantage.
    "reward/std": HealthBand(
        "spread of rewards",
        "all answers earn the same, so that there is nothing to learn: the task is solved, too "
        "hard, or badly scored",
        updates=10,
        low=0.001,
    ),
    "rewards/NAME/failed": HealthBand(
        "failed scorings of {name}",
        "answers go without a score: the page Rewards has the failures by kind and the last error",
        updates=5,
        high=0.05,
    ),
    "rollout/ess": HealthBand(
        "effective sample size",
        "a few tokens carry most of the weight, because sampler and learner disagree: a smaller "
        "max_staleness, and a look at generator against learner",
        updates=10,
        low=0.5,
    ),
    # Mismatch of inference and training that precedes collapse: docs/metrics.md, bf16.
    "rollout/logprob_diff": HealthBand(
        "difference of generator and learner",
        "the two disagree about the same weights by more than rounding of bf16 explains: look at "
        "dtypes, attention kernels, temperature and the chat template",
        updates=5,
        high=0.05,
    ),
    "rollout/weight_over_cap": HealthBand(
        "capped importance weights",
        "so many tokens are far likelier to the learner than to their sampler that the cap decides "
        "what is learned: a smaller max_staleness",
        updates=10,
        high=0.05,
    ),
    "schedule/admitted_share": HealthBand(
        "admitted groups",
        "most groups teach nothing and are generated in vain: harder prompts, or easier ones",
        updates=10,
        low=0.2,
    ),
    "staleness/dropped_share": HealthBand(
        "share dropped for age",
        "slow answers are overtaken, and what is trained leans to short ones: a smaller "
        'schedule.window, a larger max_staleness, or schedule.stale = "wait"',
        updates=20,
        high=0.05,
    ),
}


MIN_UPDATES_BACK = 5
"""Updates that something has to be inside in a row, at least, before it counts as back: a value
that goes to and fro across its bound is one crossing, not many."""


class BandCrossing:
    """Hysteresis of a metric that leaves its band: a crossing begins after this many updates
    outside in a row, and ends after as many inside, and at least MIN_UPDATES_BACK."""

    def __init__(self, updates: int = 1) -> None:
        self._updates = updates
        self._in_a_row = 0
        self.stands = False

    def add_update(self, outside: bool) -> Turn | None:
        """One more update; what is not known is not shown."""
        self._in_a_row = self._in_a_row + 1 if outside != self.stands else 0
        if self._in_a_row < (
            max(self._updates, MIN_UPDATES_BACK) if self.stands else self._updates
        ):
            return None
        self._in_a_row, self.stands = 0, outside
        return "begins" if outside else "ends"


@dataclass(frozen=True)
class Alert:
    """A metric has left its band: from the update `since` to `last`, outside in `updates` of them,
    `worst` furthest of all. `now`: it has not come back."""

    metric: str
    side: Side
    bound: float
    since: int
    last: int
    updates: int
    worst: float
    now: bool
    text: str
    why: str


def band_of(name: str) -> HealthBand | None:
    """The band of a metric; None where it has none."""
    return BANDS.get(pattern_of(name))


def limits_of(name: str, values: Iterable[float]) -> BandLimits | None:
    """Return a band's ends for these values; None: no band, or the usual value is not known."""
    band = band_of(name)
    if band is None:
        return None
    if band.times is None:
        return BandLimits(band.low, band.high)
    known = list(values)
    usual = statistics.median(known) if known else 0.0
    return BandLimits(None, band.times * usual) if usual > 0 else None


def alerts(series: Series) -> list[Alert]:
    """Every time that a metric left its band, those that last first, then the newest."""
    found = [alert for name, points in series.items() for alert in _left(name, points)]
    return sorted(found, key=lambda alert: (not alert.now, -alert.last, alert.metric))


def alert_sentence(alert: Alert) -> str:
    """An alert in one line: what, since when, and what it means."""
    when = f"since update {alert.since}" if alert.now else f"updates {alert.since} to {alert.last}"
    return f"{alert.text}, {when}: {alert.why}"


def format_bound(value: float, unit: str) -> str:
    """A bound as text."""
    return f"{100 * value:.3g} %" if unit == "share" else f"{value:.3g}"


def rule_text(name: str) -> str:
    """Return in words when a metric's band is left; empty where it has none."""
    band, unit = band_of(name), info_of(name).unit
    if band is None:
        return ""
    ends = [
        f"under {format_bound(band.low, unit)}" if band.low is not None else "",
        f"over {format_bound(band.high, unit)}" if band.high is not None else "",
        f"over {band.times:g} times its median" if band.times is not None else "",
    ]
    return f"{' or '.join(filter(None, ends))} for {_updates(band.updates)}"


def _left(name: str, points: Sequence[tuple[int, float | None]]) -> Iterator[Alert]:
    """The alerts of one metric, in order."""
    band = band_of(name)
    known = [(update, value) for update, value in points if value is not None]
    limits = limits_of(name, (value for _, value in known))
    if band is None or limits is None:
        return
    for side in SIDES:
        crossing, outside = BandCrossing(band.updates), list[tuple[int, float]]()
        for update, value in known:
            is_out = limits.side(value) == side
            if is_out:
                outside.append((update, value))
            turn = crossing.add_update(is_out)
            if turn == "ends":
                yield _alert(name, side, limits.bound(side), outside, now=False)
            if not is_out and not crossing.stands:
                outside = []
        if crossing.stands:
            yield _alert(name, side, limits.bound(side), outside, now=True)


def _alert(
    name: str, side: Side, bound: float, outside: Sequence[tuple[int, float]], *, now: bool
) -> Alert:
    band, unit = BANDS[pattern_of(name)], info_of(name).unit
    values = [value for _, value in outside]
    label = band.label.format(name=name.partition("/")[2].rpartition("/")[0])
    end = format_bound(bound, unit)
    if band.times is not None:
        end += f" ({band.times:g} times the usual)"
    return Alert(
        metric=name,
        side=side,
        bound=bound,
        since=outside[0][0],
        last=outside[-1][0],
        updates=len(outside),
        worst=min(values) if side == "under" else max(values),
        now=now,
        text=f"{label} {side} {end} for {_updates(len(outside))}",
        why=band.why,
    )


def _updates(number: int) -> str:
    return "1 update" if number == 1 else f"{number} updates"
