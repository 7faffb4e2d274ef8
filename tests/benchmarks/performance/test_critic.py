"""The figures of `headrace bench critic`, worked out by hand."""

import numpy as np

from benchmarks.performance.critic import HeldOutAnswer, figures


def test_figures_of_two_answers() -> None:
    """Values 0.8 of a right answer and 0.2 of a wrong one leave 0.04 of a variance of 0.25."""
    held = [HeldOutAnswer(place, [1], [2] * 4, [-1.0] * 4, 1.0 - place) for place in range(2)]
    prefixes = [(0, [1.0, 1.0]), (1, [0.0, 0.0])]
    values, returns = np.repeat([0.8, 0.2], 4), np.repeat([1.0, 0.0], 4)
    found = figures(held, prefixes, values, returns)
    assert (found["answers"], found["tokens"], found["mean return"]) == (2, 8, 0.5)
    # Of resampled prompts, those that are the same one twice have no variance, and do not count.
    share = [0.84, 0.84, 0.84]
    quarters = [found[f"quarter {quarter}"] for quarter in (1, 2, 3, 4)]
    assert [found["explained variance"], found["by answers"], *quarters] == [share] * 6
    assert found["attainable share"] == [1.0, 1.0, 1.0]
    assert found["of the attainable"] == 0.84
