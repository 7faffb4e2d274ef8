"""Metrics of records, as the single numbers that most of them are."""

from headrace.protocol.fields import Metric


def number(metric: Metric) -> float:
    """The metric, which must not be an array."""
    assert not isinstance(metric, list), f"{metric} is an array"
    return metric
