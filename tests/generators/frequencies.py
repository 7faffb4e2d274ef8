"""Whether draws are of a distribution."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence


def unlikely(
    draws: Iterable[int], probabilities: Sequence[float], sigmas: float = 3.0
) -> list[str]:
    """What speaks against it: a frequency further from its probability than so many standard
    deviations of the mean of that many draws, or a token whose probability is 0."""
    counts = Counter(draws)
    n = counts.total()
    found = [f"token {token} was drawn" for token in counts if not 0 <= token < len(probabilities)]
    for token, p in enumerate(probabilities):
        error = abs(counts[token] / n - p)
        if error > sigmas * math.sqrt(p * (1 - p) / n):
            found.append(f"token {token}: {counts[token] / n:.5f} instead of {p:.5f}")
    return found
