"""A report on the value model in words.

In: a `dashboard.reads.critic.CriticReport`. Out: sentences. What lies within two standard errors of
zero is not called high or low.
"""

import math

import pandas as pd

from dashboard.formatting import count, share
from dashboard.reads.critic import CriticReport, Mean
from headrace.metrics.attainable import ENOUGH

TAKES = {
    "copy": "the value at the window's last token",
    "bootstrap": "the value at the next token (as of the update that trained that)",
    "terminal": "0",
    "outcome": "the reward that came where it was known, which is not counted here, else the value "
    "at the window's last token",
}
"""What each boundary rule takes for all that comes after a cut."""


def verdict(found: CriticReport) -> str:
    """Summary of the critic, in a sentence or two."""
    said = [f"In updates {count(found.first)} to {count(found.last)} {_explains(found)}"]
    said.append(f"On average they were {_off(found.bias)}.")
    if found.cuts:
        said.append(
            f"At {count(found.cuts)} cuts what was assumed of the rest was "
            f"{_off(found.cut_bias)}, with a root mean square of {found.cut_rmse:.2g}."
        )
    if found.worth.correlation is not None:
        said.append(
            f"The advantages of {count(found.worth.windows)} windows that trained before their "
            f"answer ended correlate {found.worth.correlation:+.2f} with the return that came."
        )
    return " ".join(said)


def _explains(found: CriticReport) -> str:
    if found.explained is None:
        return "all answers earned the same, so there is nothing for values to explain."
    if found.explained <= 0:
        return (
            "values explain none of the variance of returns: the mean return would have been as "
            f"good a guess ({100 * found.explained:.0f} %)."
        )
    return f"values explain {100 * found.explained:.0f} % of the variance of returns."


def _off(bias: Mean) -> str:
    """Distance from zero, where it is more than chance."""
    if not math.isfinite(bias.error) or abs(bias.mean) <= 2 * bias.error:
        return f"neither too high nor too low ({bias.mean:+.2g}{_margin(bias)})"
    direction = "high" if bias.mean > 0 else "low"
    return f"{abs(bias.mean):.2g}{_margin(bias)} too {direction}"


def _margin(bias: Mean) -> str:
    return f" \u00b1 {bias.error:.1g}" if math.isfinite(bias.error) else ""


def attainable_text(evaluations: pd.DataFrame) -> str:
    """Sentence of the newest probes on the share that can be explained; empty without any."""
    probed = evaluations[evaluations["prefixes"] > 0]
    if probed.empty:
        return ""
    last = probed.iloc[-1]
    of = f"{count(last['prefixes'])} prefixes of its evaluations' answers"
    if pd.isna(last["attainable"]):
        return f" How much can be explained is not known yet: {of} were probed, of {ENOUGH}."
    low, high = share(last["attainable_low"]), share(last["attainable_high"])
    return f" By {of}, {share(last['attainable'])} can be explained ({low} to {high})."


def sample_text(found: CriticReport) -> str:
    """Of how much the figures are."""
    of = f"{count(found.answers)} of the {count(found.of)}"
    if found.answers == found.of:
        of = f"all {count(found.of)}"
    return (
        f"From {of} answers that ended in updates {count(found.first)} to {count(found.last)}: "
        f"{count(found.tokens)} tokens and {count(found.cuts)} cuts, each with the value that the "
        "update began with. Returns are shaped rewards, discounted, from the token to the end."
    )
