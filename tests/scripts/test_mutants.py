"""Mutation testing itself: which changes are made, what kills one, what the report keeps."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MODULE = '''"""A module."""

def grows(x: int = 3, *, least: float = 0.5) -> bool:
    """Whether x is large, or -1."""
    if x < 0:
        raise ValueError(f"{x + 1} is less than {0}")
    return x * 2 >= least and not x == 7
'''


@pytest.fixture
def mutations(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("mutations", monkeypatch)


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported("mutants", monkeypatch)


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of scripts/, imported as they import one another."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    for each in ("mutants", "mutations"):
        monkeypatch.delitem(sys.modules, each, raising=False)
    return __import__(name)


def test_every_kind_of_change_is_made_once(mutations: ModuleType) -> None:
    """What raises, annotates or documents is left alone."""
    made = [mutant.change for mutant in mutations.mutants_of(MODULE, "grows")]
    assert made == [
        "0.5 -> 1.5", "0.5 -> -0.5", "3 -> 4", "3 -> 2",
        "x < 0 -> x <= 0", "x < 0 -> x >= 0", "0 -> 1", "0 -> -1",
        "x * 2 >= least and (not x == 7) -> x * 2 >= least or not x == 7",
        "x * 2 >= least -> x * 2 > least", "x * 2 >= least -> x * 2 < least",
        "x * 2 -> x / 2", "2 -> 3", "2 -> 1",
        "not x == 7 -> x == 7", "x == 7 -> x != 7", "7 -> 8", "7 -> 6",
    ]  # fmt: skip


def test_a_mutant_is_the_module_with_one_change(mutations: ModuleType) -> None:
    original = ast.unparse(ast.parse(MODULE))
    for mutant in mutations.mutants_of(MODULE):
        lines = zip(original.splitlines(), mutant.source.splitlines(), strict=True)
        assert sum(a != b for a, b in lines) == 1, mutant.change
    first = mutations.mutants_of(MODULE)[0]
    assert first.key == "`grows`: `0.5 -> 1.5` in `def grows(x=3, *, least=1.5)`"
    assert mutations.mutants_of(MODULE)[0] == first


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("f(a, least=b, device=c)", ["f(a, device=c)"]),
        ("torch.where(a, b, c)", ["torch.where(a, c, b)"]),
        ("a.clamp().b", ["a.b"]),
        ("a if b else c", ["a", "c"]),
        ("a < b <= c", ["a <= b <= c", "a >= b <= c", "a < b < c", "a < b > c"]),
        ("[a for a in b if a]", []),
        ("~a & b", ["~a | b", "a & b"]),
    ],
)
def test_changes_of_calls_and_expressions(
    mutations: ModuleType, expression: str, expected: list[str]
) -> None:
    source = f"x = ({expression})\ny = 1\n"
    made = [ast.parse(m.source).body[0] for m in mutations.mutants_of(source)][:-2]
    assert [ast.unparse(statement) for statement in made] == [f"x = {e}" for e in expected]


def test_a_plain_condition_is_turned_round(mutations: ModuleType) -> None:
    (mutant,) = mutations.mutants_of("if a:\n    b()\n")
    assert mutant.statement == "if not a:"


def test_what_has_nothing_to_change_is_said(mutations: ModuleType) -> None:
    with pytest.raises(ValueError, match="nothing to change in shrinks"):
        mutations.mutants_of(MODULE, "shrinks")


def test_targets_and_their_tests_exist(mutants: ModuleType) -> None:
    for target, tests in mutants.TARGETS.items():
        module, _, function = target.partition(":")
        source = (ROOT / (module.replace(".", "/") + ".py")).read_text()
        assert mutants.mutants_of(source, function or None)
        assert all((ROOT / test).is_file() for test in tests), target


def outcome(mutants: ModuleType, survivors: list[Any]) -> Any:
    return mutants.Outcome("learner.shaping", ("tests/a.py",), 30, 20, survivors)


def test_the_report_keeps_reasons_and_asks_for_those_that_lack(
    mutants: ModuleType, mutations: ModuleType
) -> None:
    one, two = mutations.mutants_of(MODULE)[:2]
    first = mutants.written(mutants.HEAD, [outcome(mutants, [one, two])])
    assert "20 of 30 mutants ran, 18 killed, 2 survived; tests: `tests/a.py`." in first
    assert mutants.ran_in(first) == 20
    assert mutants.ran_in("## x\n\nall 7 mutants ran, 7 killed") == 7
    assert first.count(mutants.UNEXPLAINED) == 2
    explained = first.replace(mutants.UNEXPLAINED, "Nobody leaves\n  x out.", 1)
    second = mutants.written(explained, [outcome(mutants, [two, one])])
    assert second.count(mutants.UNEXPLAINED) == 1
    assert f"- {one.key}\n  Nobody leaves\n  x out.\n" in second
    third = mutants.written(second, [outcome(mutants, [])])
    assert one.key not in third
    other = mutants.written(second, [mutants.Outcome("learner.ratios", (), 1, 1, [])])
    assert other.index("## learner.ratios") < other.index("## learner.shaping")
    assert "Nobody leaves" in other


def test_the_checked_in_report_has_a_reason_for_every_survivor(mutants: ModuleType) -> None:
    report = (ROOT / "docs" / "mutants.md").read_text()
    assert report.startswith(mutants.HEAD)
    assert mutants.UNEXPLAINED not in report
    assert set(mutants.sections(report)) <= set(mutants.TARGETS)
    for section in mutants.sections(report).values():
        assert len(mutants.reasons_of(section)) == section.count("\n- ")


TEST = """
from pathlib import Path
from package.module import double

def test_double():
    assert double(3) == 6
    assert Path.cwd() != Path({tree!r})
"""


@pytest.mark.slow
def test_a_run_tells_killed_from_survived_and_leaves_the_tree(tmp_path: Path) -> None:
    """A small repository: `x * 2` is tested, the second function is not, and one mutant hangs."""
    tree = tmp_path / "tree"
    (tree / "package").mkdir(parents=True)
    (tree / "docs").mkdir()
    (tree / "package" / "__init__.py").write_text("")
    source = (
        "def double(x):\n    while x == 0:\n        pass\n    return x * 2\n\n"
        "def unseen(x):\n    return -x\n"
    )
    (tree / "package" / "module.py").write_text(source)
    (tree / "test_it.py").write_text(TEST.format(tree=str(tree)))
    (tree / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    subprocess.run(["git", "init", "-q", "."], cwd=tree, check=True)
    code = (
        "import sys; from pathlib import Path; import mutants as m; tree = Path(sys.argv[1]);"
        "m.ROOT, m.REPORT, m.LOADED = tree, tree / 'docs' / 'mutants.md', ('pytest',);"
        "m.TARGETS = {'package.module': ('test_it.py',)};"
        "sys.exit(m.main(['--limit', '20']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tree)],
        cwd=ROOT / "scripts", capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "package.module: 7 of 7 mutants" in done.stdout
    assert (tree / "package" / "module.py").read_text() == source
    report = (tree / "docs" / "mutants.md").read_text()
    survivors = [line for line in report.splitlines() if line.startswith("- ")]
    assert survivors == [
        "- `double`: `0 -> 1` in `while x == 1:`",
        "- `double`: `0 -> -1` in `while x == -1:`",
        "- `unseen`: `-x -> x` in `return x`",
    ]
    # A test more, and only the survivors again.
    more = "from package.module import unseen\n\ndef test_unseen():\n    assert unseen(1) == -1\n"
    (tree / "test_it.py").write_text(TEST.format(tree=str(tree)) + more)
    again = subprocess.run(
        [sys.executable, "-c", code.replace("'--limit'", "'--again', '--limit'"), str(tree)],
        cwd=ROOT / "scripts", capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert "package.module: 3 of 7 mutants" in again.stdout, again.stderr
    report = (tree / "docs" / "mutants.md").read_text()
    assert "all 7 mutants ran, 5 killed, 2 survived" in report
    assert "`unseen`" not in report
