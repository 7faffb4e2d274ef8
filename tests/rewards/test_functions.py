from pathlib import Path

import pytest

from headrace.errors import UserError
from rewards.functions import load_functions
from rewards.verdict import Verdict
from tests.rewards.items import item, user_function

HERE = Path(__file__).parent


def call(name: str, info: str = "{}") -> Verdict:
    """The verdict of a function on a right answer."""
    return load_functions(user_function(function=name))(item("7", info=info), threshold=0.5)


def test_by_module_and_by_file_are_the_same_function() -> None:
    for name in ("tests.rewards.misbehaviour:behave", f"{HERE / 'misbehaviour.py'}:behave"):
        assert call(name) == Verdict(1.0, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_colon", "write package.module:name"),
        (":name", "write package.module:name"),
        ("no.such.module:name", "cannot import"),
        ("no/such/file.py:name", "no file"),
        ("tests.rewards.misbehaviour:nothing", "has no function 'nothing'"),
        ("tests.rewards.misbehaviour:NOT_A_FUNCTION", "has no function"),
    ],
)
def test_a_name_without_a_function_is_the_users_mistake(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_functions(user_function(function=name))


def test_info_becomes_keyword_arguments_that_the_function_takes() -> None:
    info = '{"weight": 3, "source": "somewhere", "answer": "8"}'
    assert call("tests.rewards.misbehaviour:strict", info) == Verdict(3.0, True)


def test_functions_of_one_file_share_its_module(tmp_path: Path) -> None:
    path = tmp_path / "two.py"
    path.write_text(
        "seen = []\n"
        "def first(completion):\n    seen.append(completion)\n    return 1.0\n"
        "def second(completion):\n    return float(len(seen))\n"
    )
    config = user_function(
        function=None, functions=[{"name": f"{path}:first"}, {"name": f"{path}:second"}]
    )
    verdict = load_functions(config)(item("7"), threshold=0.5)
    assert verdict.parts == {"first": 1.0, "second": 1.0}
