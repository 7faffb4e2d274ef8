"""Critic: what the value model says, and what came.

Above all what it says where T-PPO has to trust it: at the cuts of windows whose answers go on.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from dashboard.charts import critic_figures as charts
from dashboard.components import panels
from dashboard.components.panels import BOUND
from dashboard.formatting import count, number, share
from dashboard.reads.critic import CriticReport, Mean
from dashboard.reads.critic_summary import TAKES, attainable_text, sample_text, verdict
from dashboard.reads.data import RunData, is_live

LEAST_UPDATES = 20
"""Updates that are looked at where nobody chose others, or a quarter of all if that is more."""
OVER_UPDATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Explained variance", ("critic/vf_explained_var",)),
    ("Error over all tokens", ("critic/value_bias", "critic/value_rmse")),
    ("Error at cuts that are known by now", ("value/cut_bias", "value/cut_rmse")),
    ("Value at cuts", ("value/at_cut", "critic/values/mean")),
    ("Policy that rests on a guess", ("egae/bootstrap_tokens", "egae/bootstrap_share")),
    ("Lambda in force", ("egae/lambda",)),
)
ARRAYS = (
    ("Bias along the answer", "value/bias"),
    ("Error along the answer", "value/rmse"),
    ("Lambda by response length", "egae/lambda_by_length"),
)
_NO_CUTS = "These answers have no cut behind which the return is known."


@panels.repainted
def render(run: RunData) -> None:
    """The page."""
    panels.title(run, "Critic")
    algorithm = run.config()["algorithm"]
    if missing := without_critic(algorithm):
        panels.empty(missing)
        return
    first, last = _updates(run)
    found = run.critic(first, last) if last else None
    if found is None:
        panels.empty(_why_nothing(run, first, last))
    else:
        _judged(run, found, algorithm["advantages"]["boundary"])
    over = [partial(panels.metric_card, run, title, names) for title, names in OVER_UPDATES]
    arrays = [partial(panels.array_card, run, title, name) for title, name in ARRAYS]
    panels.section("Over the updates")
    panels.grid([*over, *arrays])


def without_critic(algorithm: Mapping[str, Any]) -> str:
    """Text for a run whose advantages use no value model; empty where they use one."""
    if algorithm["advantages"]["kind"] == "egae" and algorithm["value"] is not None:
        return ""
    if algorithm["value"] is None:
        return (
            f"This run has no critic: {algorithm['name']} takes advantages from the rewards of a "
            "group, so nothing here has to be trusted. Advantages are on Learning and Trajectories."
        )
    return (
        "This run trains a value model and does not read it: its advantages are those of groups. "
        "How well it learns is on Learning."
    )


def _updates(run: RunData) -> tuple[int, int]:
    """The first and the last update to look at."""
    updates = run.line.updates
    newest = newest_update(updates) if is_live(run.line) else updates
    with st.container(horizontal=True, vertical_alignment="bottom"):
        first = st.number_input(
            "From update", value=None, min_value=1, step=1, placeholder="newest quarter",
            key="updates_from", width=190, **BOUND,
        )  # fmt: skip
        last = st.number_input(
            "To update", value=None, min_value=1, step=1, placeholder="newest", key="updates_to",
            width=190, **BOUND,
        )  # fmt: skip
    return chosen_updates(first, last, newest)


def newest_update(updates: int) -> int:
    """The update up to which a live run is looked at: in a long run not each one brings a new
    picture."""
    step = max(1, updates // 50)
    return updates // step * step


def chosen_updates(first: int | None, last: int | None, newest: int) -> tuple[int, int]:
    """Chosen updates, within those there are; by default the newest quarter, and at least
    LEAST_UPDATES."""
    end = newest if last is None else min(int(last), max(newest, 1))
    if first is not None:
        return min(int(first), max(end, 1)), end
    return max(1, end - max(LEAST_UPDATES, end // 4) + 1), end


def _why_nothing(run: RunData, first: int, last: int) -> str:
    if not last:
        return panels.awaited(run, "the first update")
    if not run.config()["storage"]["token_diagnostics"]:
        return (
            "Values of single tokens were not recorded: storage.token_diagnostics is off. What the "
            "learner says of an update is below."
        )
    what = f"an answer that ended in updates {count(first)} to {count(last)}"
    return f"{panels.awaited(run, what)} The value model's warm-up records no values of tokens."


def _judged(run: RunData, found: CriticReport, boundary: str) -> None:
    text = verdict(found) + attainable_text(run.evaluations())
    st.info(text, icon=":material/psychology:")
    _headline(run, found)
    st.caption(sample_text(found) + _penalty_text(run.config()["algorithm"].get("kl")))
    card = partial(panels.frame_card, wait=_NO_CUTS)
    panels.grid(
        [
            partial(
                card, "Value along the answer", charts.along_chart, found.along,
                caption="Mean value before each token, answers that earned more than the mean "
                "apart from those that earned less; the band holds the middle half, dashed is what "
                "came. Healthy: the two part early and end where the dashed lines are. Where they "
                "do not part, advantages are noise.",
            ),
            partial(
                card, "Value against what came", charts.calibration_chart, found.calibration,
                caption="Tokens by their value: what came, on average, with one standard error "
                "over answers. Healthy: on the line. Flatter than the line: the critic is surer "
                "than it may be.",
            ),
        ]
    )  # fmt: skip
    panels.section("At the cuts")
    panels.grid(
        [
            partial(
                card, "What was assumed, and what came", charts.numbers_chart, found.numbers,
                caption=f'At a cut the rule "{boundary}" takes {TAKES[boundary]} for all that '
                "follows; what the answer then got is known by now. Means by the cut's number, "
                "with one standard error. Healthy: the pairs touch.",
            ),
            partial(
                card, "What the assumption costs", charts.before_ends_chart, found.costs,
                {"bias": "mean", "rmse": "root mean square", "noise": "that of V - R"},
                caption="How much higher an advantage is than with the return that came in the "
                "place of what was assumed, before whitening: gamma (gamma lambda)^k (assumed - "
                "return), k tokens before the cut. Healthy: a mean near 0, and a root mean square "
                "below that of value less return at the same tokens: then the value model takes "
                "more noise out than its errors bring in.",
            ),
        ]
    )  # fmt: skip
    if len(found.rules):
        _rules(found, boundary)
    panels.section("Along the answer")
    explained = found.tenths if found.tenths["explained"].notna().any() else found.tenths[:0]
    panels.grid(
        [
            partial(
                card, "Explained variance by position", charts.tenths_chart, explained,
                {"explained": "explained variance"},
                caption="1 - Var(R - V) / Var(R) in each tenth of the answer: how early the critic "
                "knows how it will end. Healthy: above 0 everywhere, rising towards the end.",
                wait="All answers earned the same: there is nothing to explain.",
            ),
            partial(
                card, "Error by position", charts.tenths_chart, found.tenths,
                {"bias": "mean of V - R", "rmse": "its root mean square"},
                caption="Value less return in each tenth of the answer. Healthy: a mean near 0, a "
                "root mean square that falls towards the end.",
            ),
            partial(
                card, "Advantage by position", charts.tenths_chart, found.tenths,
                {"advantage": "mean", "strength": "mean of the absolute value"},
                caption="As the policy's loss reads it, in each tenth of the answer. Healthy: a "
                "mean near 0 everywhere. A mean that falls or rises along the answer teaches "
                "length.",
            ),
            partial(
                card, "Advantage before a window's end", charts.ends_chart, found.ends,
                caption="Mean absolute advantage by the tokens left in the window. Under copy it "
                "shrinks towards a cut, for all it holds there is the critic's change of mind; "
                "what stands out at the very end is what algorithm.advantages.boundary_mask is "
                "for.",
            ),
        ]
    )  # fmt: skip


def _headline(run: RunData, found: CriticReport) -> None:
    latest, worth = run.latest("egae/"), found.worth.correlation
    reach = "a reward counts in full" if found.reach is None else (
        f"a reward halves in {number(found.reach)} tokens"
    )  # fmt: skip
    panels.figures(
        ("Explained variance", "-" if found.explained is None else share(found.explained),
         f"{count(found.tokens)} tokens"),
        ("Value less return", _signed(found.bias.mean), _error(found.bias)),
        ("Assumed less what came", _signed(found.cut_bias.mean), _error(found.cut_bias)),
        ("Policy tokens on a guess", share(latest.get("egae/bootstrap_tokens")), "newest update"),
        ("Lambda", number(latest.get("egae/lambda")), reach),
        ("Advantage against return", "-" if worth is None else _signed(worth),
         f"correlation of {count(found.worth.windows)} unfinished windows"),
    )  # fmt: skip


def _signed(value: float) -> str:
    return f"{value:+.3f}" if math.isfinite(value) else "-"


def _error(mean: Mean) -> str:
    return f"\u00b1 {number(mean.error)}" if math.isfinite(mean.error) else ""


def _penalty_text(kl: Mapping[str, Any] | None) -> str:
    if not kl or kl["where"] != "reward":
        return ""
    return " The divergence's part of them is known in last windows only and is left out before."


def _rules(found: CriticReport, boundary: str) -> None:
    rows = [
        {
            "rule": f"{row['rule']} (in force)" if row["rule"] == boundary else row["rule"],
            "takes": TAKES[str(row["rule"])],
            "assumed less what came": _signed(row["bias"]),
            "standard error": number(row["error"]),
            "root mean square": number(row["rmse"]),
        }
        for row in found.rules.to_dict("records")
    ]
    with panels.framed("The three rules on the same cuts"):
        panels.few_rows(rows)
        st.caption(
            f"{count(found.rules['cuts'].iloc[0])} cuts whose next token was trained: what each "
            "setting of algorithm.advantages.boundary would have taken for the rest of the answer. "
            "terminal makes being cut a loss, whatever the answer earns in the end."
        )
