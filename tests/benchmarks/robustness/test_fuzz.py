"""The old name of the fuzzer, and the rows that it made."""

import pytest

from benchmarks.kit.rows import RESULTS, Rows
from benchmarks.robustness import fuzz
from headrace.errors import UserError


def test_the_old_name_says_the_new_one() -> None:
    with pytest.raises(UserError, match="pytest tests/fuzz --hypothesis-profile=long"):
        fuzz.main(["--inputs", "200000"])


def test_checked_in_rows_are_read() -> None:
    told = fuzz.summary(Rows(RESULTS / "fuzz.jsonl").rows.values())
    assert told["inputs"] >= 1_000_000
    assert set(told["targets"]) == set(fuzz.TARGETS)
    assert told["findings"] == []
