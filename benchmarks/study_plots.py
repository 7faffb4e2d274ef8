"""The plots of the studies on `docs/evidence.md`: what each shows, and how it is drawn.

In: the rows of a study's arms. Out: SVG files. Arms that have no rows yet are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks import code_prm, dapo_parts, egae, staleness, vapo_parts, vcppo
from benchmarks.plots import (
    accuracy_over_tokens,
    accuracy_over_updates,
    against,
    curves,
    dots,
    length_over_updates,
    metric_over_updates,
    over_positions,
    save,
)
from benchmarks.study_plan import Row

Arms = Mapping[str, Sequence[Row]]


class Plot(NamedTuple):
    """A plot of a study: its caption, and what draws it from the rows of the arms."""

    caption: str
    draw: Callable[[Arms, Path], None]


def pick(arms: Arms, *names: str) -> Arms:
    """Those of the arms that have rows."""
    return {name: arms[name] for name in names if name in arms}


def draw_accuracies(arms: Arms, path: Path) -> None:
    """Mean and final accuracy, one line an arm."""
    height = 0.9 + 0.27 * len(arms)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, height), sharey=True)
    dots(left, arms, "mean")
    dots(right, arms, "final")
    left.set(xlabel="mean accuracy over the run")
    right.set(xlabel="final accuracy")
    right.invert_yaxis()
    save(figure, path)


def draw_vcppo(arms: Arms, path: Path) -> None:
    """The failure and the cures, by updates."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4))
    cures = pick(arms, *(arm.name for arm in vcppo.CURES))
    curves(left, cures, length_over_updates)
    left.set(xlabel="updates of the policy", ylabel="mean response length, tokens")
    curves(right, cures, accuracy_over_updates)
    right.set(xlabel="updates of the policy", ylabel="held-out accuracy")
    save(figure, path)


def draw_vcppo_positions(arms: Arms, path: Path) -> None:
    """The paper's picture: what the value model says, and the advantage that comes of it."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4))
    cures = pick(arms, *(arm.name for arm in vcppo.CURES))
    curves(left, cures, over_positions("value"))
    left.set(xlabel="place in the answer", ylabel="mean value")
    curves(right, cures, over_positions("advantage"))
    right.axhline(0.0, color="black", linewidth=0.8)
    right.set(xlabel="place in the answer", ylabel="mean advantage before whitening")
    save(figure, path)


def draw_vcppo_sweeps(arms: Arms, path: Path) -> None:
    """Accuracy over the policy's lambda and over the updates of pretraining."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True)
    cured = "low, both cures"
    lambdas = {float(lam): f"lambda {lam}" for lam in ("0.90", "0.98", "0.99", "1.00")}
    steps = {float(count): f"pretraining {count}" for count in (2, 4, 24, 48)}
    lambdas = dict(sorted({**lambdas, 0.95: cured}.items()))
    steps = dict(sorted({**steps, 0.0: "low, decoupled", 8.0: cured}.items()))
    for axes, names, label in ((left, lambdas, "lambda"), (right, steps, "pretraining updates")):
        sweep(axes, arms, names, lambda row: row["mean"], index=0, label="mean accuracy")
        sweep(axes, arms, names, lambda row: row["final"], index=1, label="final accuracy")
        axes.set(xlabel=label)
    save(figure, path)


def draw_egae_tokens(arms: Arms, path: Path) -> None:
    """The same runs by updates and by what they generated."""
    draw_updates_and_tokens(pick(arms, *(arm.name for arm in egae.WINDOWS)), path)


def draw_staleness(arms: Arms, path: Path) -> None:
    """The lag that a bound leads to, and accuracy over the bound; `borders` stands at 0."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.2))
    figures: tuple[Callable[[Row], float], ...] = (
        staleness.mean_lag,
        lambda row: row["mean"],
        lambda row: row["final"],
    )
    for index, ratio in enumerate(staleness.RATIOS):
        names = {float(b): f"staleness {b}, {ratio}" for b in (1, *staleness.BOUNDS)}
        for axes, figure_of in zip((left, middle, right), figures, strict=True):
            sweep(axes, arms, {0.0: "borders", **names}, figure_of, index=index, label=ratio)
    for axes, label in ((left, "mean lag, updates"), (middle, "mean accuracy")):
        axes.set(xlabel="bound on staleness, updates", ylabel=label)
    right.set(xlabel="bound on staleness, updates", ylabel="final accuracy")
    save(figure, path)


def draw_dapo(arms: Arms, path: Path) -> None:
    """Entropy by updates, and mean accuracy."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.8, 3.4))
    chosen = pick(arms, *dapo_parts.STUDY.reduced_arms)
    curves(left, chosen, metric_over_updates("actor/entropy"))
    left.set(xlabel="updates of the policy", ylabel="entropy, nats")
    dots(right, arms, "mean")
    right.set(xlabel="mean accuracy")
    save(figure, path)


def draw_updates_and_tokens(arms: Arms, path: Path) -> None:
    """Accuracy by updates and by generated tokens."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), sharey=True)
    curves(left, arms, accuracy_over_updates)
    left.set(xlabel="updates of the policy", ylabel="held-out accuracy")
    curves(right, arms, accuracy_over_tokens)
    right.set(xlabel="tokens generated")
    save(figure, path)


def sweep(
    axes: Axes,
    arms: Arms,
    names: Mapping[float, str],
    figure: Callable[[Row], float],
    *,
    index: int,
    label: str,
) -> None:
    """The figure of the arms that have rows, each at its x."""
    points = [(x, [figure(row) for row in arms[name]]) for x, name in names.items() if name in arms]
    if points:
        xs, values = zip(*points, strict=True)
        against(axes, xs, values, label=label, index=index)


PLOTS: dict[str, dict[str, Plot]] = {
    vapo_parts.STUDY.name: {
        "vapo-parts": Plot("Accuracy of the recipe and its removals", draw_accuracies),
    },
    vcppo.STUDY.name: {
        "vcppo-positions": Plot("Value and advantage by place in the answer", draw_vcppo_positions),
        "vcppo": Plot("Length and accuracy of plain PPO and its cures", draw_vcppo),
        "vcppo-sweeps": Plot("Sweeps over lambda and pretraining", draw_vcppo_sweeps),
    },
    egae.STUDY.name: {
        "egae": Plot("Accuracy by window, boundary and mask", draw_accuracies),
        "egae-tokens": Plot("Accuracy by updates and by generated tokens", draw_egae_tokens),
    },
    staleness.STUDY.name: {
        "staleness": Plot("Lag and accuracy over the bound", draw_staleness),
    },
    dapo_parts.STUDY.name: {
        "dapo-parts": Plot("Entropy and accuracy", draw_dapo),
    },
    code_prm.STUDY.name: {
        "code-prm": Plot("Accuracy with and without rewards for lines", draw_updates_and_tokens),
    },
}
"""By study, then by the name of the file."""
