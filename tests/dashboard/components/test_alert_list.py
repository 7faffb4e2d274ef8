"""Events as lines of HTML."""

from types import SimpleNamespace

from dashboard.components.alert_list import event_html
from headrace.errors import moment


def test_an_event_has_its_day() -> None:
    """A time of day says too little of a run of weeks, or of one that was resumed after days."""
    days = [86_400.0 * day for day in (100, 101)]
    rows = [SimpleNamespace(at=at, level="info", kind="phase", text="training") for at in days]
    first, second = map(event_html, rows)
    assert moment(days[0]) in first
    assert first != second
