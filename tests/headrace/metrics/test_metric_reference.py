"""The page of metrics says what the table says."""

from headrace.metrics.metric_reference import SECTIONS, page
from headrace.metrics.registry import METRICS


def test_every_metric_has_its_line_under_its_prefix() -> None:
    text = page()
    for name, info in METRICS.items():
        assert text.count(f"\n- `{name}`") == 1
        assert info.meaning in text


def test_every_prefix_is_explained_and_none_is_left_over() -> None:
    assert {name.split("/")[0] for name in METRICS} == set(SECTIONS)
    assert page().count("\n## ") == len(SECTIONS)
