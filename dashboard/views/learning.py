"""Learning: whether the policy gets better, and whether its gradients look healthy."""

from functools import partial
from pathlib import Path
from typing import cast

import streamlit as st

from dashboard import panels
from dashboard.data import RunData
from dashboard.figures import AXES, accuracy_chart
from storage.queries.metrics import Axis

CHARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward", ("reward/mean",)),
    ("Response length", ("response_length/mean",)),
    ("Longest response", ("response_length/max",)),
    ("Entropy", ("actor/entropy",)),
    ("KL", ("actor/ppo_kl", "rollout/mismatch_kl")),
    (
        "Clip shares",
        ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/pg_clipfrac_dual"),
    ),
    ("Explained variance", ("critic/vf_explained_var",)),
    ("Policy loss", ("actor/pg_loss",)),
    ("Value loss", ("critic/vf_loss",)),
    ("Gradient norms", ("actor/grad_norm", "critic/grad_norm")),
    ("Responses cut at the limit", ("response_length/clip_ratio",)),
    ("Effective sample size", ("rollout/ess",)),
    ("Generator against learner", ("rollout/logprob_diff",)),
)

ARRAYS = (
    ("Value error along the response", "value/rmse"),
    ("Value bias along the response", "value/bias"),
    ("Lambda by response length", "egae/lambda_by_length"),
)


def render(run: RunData, root: Path) -> None:
    """The page."""
    panels.live(run, _body)


def _body(run: RunData) -> None:
    panels.title(run, "Learning")
    chosen = st.segmented_control(
        "Horizontal axis",
        list(AXES),
        default="update",
        required=True,
        format_func=AXES.__getitem__,
        key="axis",
        bind="query-params",
    )
    x = cast(Axis, chosen or "update")
    draw = [partial(panels.metric_card, run, title, names, x) for title, names in CHARTS]
    arrays = [partial(panels.array_card, run, title, name) for title, name in ARRAYS]
    panels.grid([partial(_accuracy, run, x), *draw, *arrays])


def _accuracy(run: RunData, x: Axis) -> None:
    rows = run.evaluations()
    panels.card(
        "Held-out accuracy",
        None if rows.empty else accuracy_chart(rows, x=x, height=240),
        "Share of held-out prompts answered correctly, by update or by training time; the band is "
        "one standard error. Healthy: rising.",
        wait=panels.awaited(run, "the first evaluation"),
    )
