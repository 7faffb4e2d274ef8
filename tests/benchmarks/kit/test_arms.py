"""Which row of a run counts, and when a run is over."""

from typing import Any

from benchmarks.kit.arms import MAX_TRIES, is_missing, new_key, row_of


def row(share: float) -> dict[str, Any]:
    return {"others_cpu_share": share, "disturbed": share > 0.05}


def add(rows: dict[str, dict[str, Any]], share: float) -> None:
    name = new_key("a/1/x", rows, row(share))
    rows[name] = {"key": name, **row(share)}


def test_an_undisturbed_row_counts_whatever_came_before() -> None:
    rows: dict[str, dict[str, Any]] = {}
    assert row_of("a/1/x", rows) is None
    add(rows, 0.3)
    assert is_missing("a/1/x", rows)
    add(rows, 0.0)
    assert not is_missing("a/1/x", rows)
    assert list(rows) == ["a/1/x/disturbed-0", "a/1/x"]
    found = row_of("a/1/x", rows)
    assert found is not None
    assert found["others_cpu_share"] == 0.0


def test_a_machine_that_is_never_calm_ends_the_tries_and_the_least_disturbed_counts() -> None:
    rows: dict[str, dict[str, Any]] = {}
    for share in (0.3, 0.1, 0.2):
        assert is_missing("a/1/x", rows)
        add(rows, share)
    assert len(rows) == MAX_TRIES
    assert not is_missing("a/1/x", rows)
    found = row_of("a/1/x", rows)
    assert found is not None
    assert (found["others_cpu_share"], found["disturbed"]) == (0.1, True)


def test_another_run_is_another_matter() -> None:
    rows: dict[str, dict[str, Any]] = {}
    add(rows, 0.0)
    assert is_missing("a/2/x", rows)
    assert row_of("a/2/x", rows) is None
