"""Learning: whether the policy gets better, and whether its gradients look healthy."""

from functools import partial

import streamlit as st

from dashboard.components import panels
from dashboard.components.alert_list import CHART
from dashboard.formatting import metric_caption, metric_label
from dashboard.reads.data import RunData

CHARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward", ("reward/mean",)),
    ("Response length", ("response_length/mean",)),
    ("Longest response", ("response_length/max",)),
    ("Entropy", ("actor/entropy",)),
    ("KL", ("actor/ppo_kl", "rollout/mismatch_kl")),
    ("Clip shares", ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/pg_clipfrac_dual")),
    ("Explained variance", ("critic/vf_explained_var",)),
    ("Policy loss", ("actor/pg_loss",)),
    ("Value loss", ("critic/vf_loss",)),
    ("Gradient norm of the policy", ("actor/grad_norm",)),
    ("Gradient norm of the value model", ("critic/grad_norm",)),
    ("Responses cut at the limit", ("response_length/clip_ratio",)),
    ("Effective sample size", ("rollout/ess",)),
    ("Generator against learner", ("rollout/logprob_diff",)),
)

ALONG = (
    ("Held-out accuracy along the stream", "accuracy"),
    ("Versions that answered along the stream", "version"),
)
MIXTURE = (
    ("Mixture in force", "weight"),
    ("Prompts asked by domain", "asked"),
    ("Tokens trained by domain", "trained"),
    ("Answers solved by domain", "solved"),
)

ARRAYS = (
    ("Value error along the response", "value/rmse"),
    ("Value bias along the response", "value/bias"),
    ("Lambda by response length", "egae/lambda_by_length"),
)


@panels.repainted
def render(run: RunData) -> None:
    """The page."""
    panels.title(run, "Learning")
    with panels.filters(border=False), st.container(horizontal=True, gap="medium"):
        x, smoothing = panels.axis_and_smoothing("none")
        asked = _asked(run)
    if asked:
        title = next((title for title, names in CHARTS if asked in names), metric_label(asked))
        # Some gauges, such as `schedule/held`, are sampled between updates alone.
        samples = run.series((asked,)).empty
        panels.metric_card(
            run, title, (asked,), "wall" if samples else x, samples=samples, smoothing=smoothing
        )
    card = partial(panels.metric_card, run, x=x, smoothing=smoothing)
    has_critic = run.config()["algorithm"]["value"] is not None
    shown = [chart for chart in CHARTS if has_critic or not chart[1][0].startswith("critic/")]
    draw = [
        *(partial(card, *chart, caption=metric_caption(chart[1][:1])) for chart in _further(run)),
        *(partial(card, *chart) for chart in shown),
    ]
    arrays = [partial(panels.array_card, run, *array) for array in ARRAYS if has_critic]
    panels.grid([partial(panels.accuracy_card, run, x), *draw, *arrays])


def _further(run: RunData) -> list[tuple[str, tuple[str, ...]]]:
    """The charts of evaluations along the stream and of a mixture, where there are such."""
    names = [name for name in run.charted() if name.startswith(("along/", "mixture/"))]
    charts = [
        (title, tuple(n for n in names if n.endswith(end))) for title, end in (*ALONG, *MIXTURE)
    ]
    return [(title, found) for title, found in charts if found]


def _asked(run: RunData) -> str | None:
    """The metric whose chart comes first, by the choice or by a link."""
    names = run.charted()
    chosen = st.selectbox(
        "First of all",
        names,
        index=None,
        placeholder="any metric",
        key=CHART,
        bind="query-params",
        help="A metric whose chart stands first and alone: what a link of an alert opens.",
    )
    return chosen if chosen in names else None
