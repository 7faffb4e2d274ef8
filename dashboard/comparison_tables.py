"""Tables of several runs: accuracies with what a target cost, and differences in configuration.

In: runs, lines, frames. Out: styled frames for a page.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dashboard.comparison import Line
from dashboard.data import RunData
from dashboard.palette import ORANGE, tint
from dashboard.targets import accuracies
from dashboard.words import count, duration, share


def accuracy_rows(runs: Mapping[str, RunData], lines: Sequence[Line], target: float) -> Any:
    """A row for each run, line by line; `run` is a link to its overview."""
    rows = []
    for line in lines:
        for member in line.members:
            found = accuracies(runs[member.name].evaluations(), target)
            rows.append(
                {
                    "run": f"overview?run={member.name}",
                    "recipe": member.recipe,
                    "seed": member.seed,
                    "first": found.first,
                    "best": found.best,
                    "at update": found.best_update,
                    "last": found.last,
                    f"tokens to {share(target)}": found.tokens,
                    f"training to {share(target)}": found.seconds,
                }
            )
    frame = pd.DataFrame(rows).convert_dtypes()
    words: dict[Any, Any] = {"seed": count, "at update": count}
    words |= dict.fromkeys(["first", "best", "last"], share)
    words |= {f"tokens to {share(target)}": count, f"training to {share(target)}": duration}
    return frame.style.format(words, na_rep="-")


def marked_differences(found: pd.DataFrame) -> Any:
    """Differences with what is not as in the first column marked, in bold and in colour."""
    other = found.ne(found.iloc[:, 0], axis=0)
    style = f"background-color: {tint(ORANGE, 0.2)}; font-weight: 700"
    styles = other.map(lambda differs: style if differs else "")
    return found.style.apply(lambda _: styles, axis=None)
