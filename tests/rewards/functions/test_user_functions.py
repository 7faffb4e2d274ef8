from pathlib import Path

import pytest

from headrace.errors import UserError
from rewards.functions.results import Verdict
from rewards.functions.user_functions import load_functions
from tests.rewards.items import item, user_function

HERE = Path(__file__).parents[1]


def call(name: str, info: str = "{}") -> Verdict:
    """The verdict of a function on a right answer."""
    return load_functions(user_function(function=name))(item("7", info=info))


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
    verdict = load_functions(config)(item("7"))
    assert verdict.parts == {"first": 1.0, "second": 1.0}


def write(folder: Path, **files: str) -> Path:
    """A folder with these modules."""
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_file_imports_its_neighbours_either_way(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "scorers",
        __init__="raise RuntimeError('the package needs what is not here')",
        neighbour_of_a_scorer="def same(a, b):\n    return a == b\n",
        near="from .neighbour_of_a_scorer import same\n"
        "def score(completion, answer):\n    return float(same(completion, answer))\n",
        plain="import neighbour_of_a_scorer as n\n"
        "def score(completion, answer):\n    return float(n.same(completion, answer))\n",
    )
    for name in ("near", "plain"):
        assert call(f"{folder / name}.py:score") == Verdict(1.0, True)


def test_what_a_file_asks_of_its_package_comes_from_the_package(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "package",
        __init__="LEVEL = 2.0\ndef score(completion):\n    from .inner import value\n"
        "    return value()\n",
        inner="def value():\n    return 3.0\n",
        outer="from . import LEVEL\ndef score(completion):\n    return LEVEL\n",
        lost="from . import NOTHING\n",
    )
    assert call(f"{folder / 'outer.py'}:score").reward == 2.0
    assert call(f"{folder / '__init__.py'}:score").reward == 3.0
    with pytest.raises(ImportError, match="NOTHING"):
        call(f"{folder / 'lost.py'}:score")


def test_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = write(
            tmp_path / str(number), score=f"def score(completion):\n    return {number}.0\n"
        )
        assert call(f"{folder / 'score.py'}:score").reward == number
