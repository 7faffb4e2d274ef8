"""Code of users: the place of an error is in theirs."""

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UserError
from headrace.host.user_code import describe, load_module, place_of


def test_the_place_is_the_last_line_of_the_user(tmp_path: Path) -> None:
    """Not that of a library that he calls, and not ours."""
    (tmp_path / "calls.py").write_text(
        "import json\nfrom reads import number\n"
        "def text():\n    return json.loads('no')\n"
        "def one():\n    return number({})\n"
        "def scored(score):\n    return score()\n"
    )
    (tmp_path / "reads.py").write_text("def number(row):\n    return row['gold\\nanswer']\n")
    module = load_module(str(tmp_path / "calls.py"))
    with pytest.raises(ValueError, match="Expecting value") as found:
        module.text()
    assert place_of(found.value) == " (calls.py, line 4)"
    with pytest.raises(KeyError) as missing:
        module.one()
    assert describe(missing.value) == "KeyError: 'gold\\nanswer' (reads.py, line 2)"
    ours: dict[str, Any] = {"__name__": "learner.ranking.model"}
    exec("def score(): raise IndexError", ours)
    with pytest.raises(IndexError) as ranked:
        module.scored(ours["score"])
    assert place_of(ranked.value) == " (calls.py, line 8)"


def test_what_is_not_raised_by_a_user_has_no_place(tmp_path: Path) -> None:
    assert describe(RuntimeError("two\nlines")) == "RuntimeError: two lines"
    with pytest.raises(UserError) as found:
        load_module(str(tmp_path / "nowhere.py"))
    assert describe(found.value) == f"there is no file {tmp_path}/nowhere.py"
