"""pass@k: the probability that at least one of k answers to a prompt is right."""

from math import comb


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The unbiased estimate from n `samples` of which c are `correct`: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al., arXiv 2107.03374, Eq. 1. ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= correct <= samples and 1 <= k <= samples):
        raise ValueError(f"no pass@{k} from {correct} right of {samples} samples")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)
