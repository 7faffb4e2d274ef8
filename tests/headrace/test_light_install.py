"""A run's folder opens where only the base distribution is installed: no torch, no vLLM, no page.

The commands that read a run are called in a process to which the packages of all extras are as if
they were not installed. One slow test installs the base into an environment of its own.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headrace.host.install import EXTRAS, PACKAGES
from headrace_cli.commands.system.doctor import BASE, examine
from tests.dashboard.scripted_run import write_run

ROOT = Path(__file__).resolve().parents[2]
HEAVY = sorted({name for names in EXTRAS.values() for name in names} | {"vllm", "datasets"})
BLOCKER = """\
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""
CALLS = """\
import contextlib, io, json, sys
from headrace_cli.cli import main

said = {}
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    said[" ".join(words)] = [code, out.getvalue(), err.getvalue()]
print(json.dumps([said, [name for name in sys.modules if "." not in name]]))
"""
Said = dict[str, tuple[int, str, str]]
"""By command: the exit code, and what it printed on both streams."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a folder that it was copied to, without the model that it began with. Its checkpoint
    has the tokenizer."""
    made = tmp_path_factory.mktemp("elsewhere")
    run_dir = write_run(made, "run-1", updates=3, roll_back_after=None)
    root = tmp_path_factory.mktemp("laptop") / "runs"
    shutil.copytree(run_dir, root / "run-1")
    (root / "latest").write_text("run-1\n")
    policy = root / "run-1" / "checkpoints" / "step_3" / "policy"
    policy.mkdir(parents=True)
    shutil.copy(made / "model" / "tokenizer.json", policy)
    shutil.rmtree(made)
    return root


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the heavy packages are not to be found."""
    folder = tmp_path_factory.mktemp("blocker")
    (folder / "sitecustomize.py").write_text(f"HEAVY = {HEAVY!r}\n{BLOCKER}")
    return {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}


def called(light: dict[str, str], *commands: list[str]) -> tuple[Said, set[str]]:
    """What came of commands, and which modules were loaded then."""
    done = subprocess.run(
        [sys.executable, "-c", CALLS], input=json.dumps(commands), cwd=ROOT, env=light,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said, modules = json.loads(done.stdout)
    return {words: tuple(each) for words, each in said.items()}, set(modules)


def reading(root: Path, out: Path) -> list[list[str]]:
    """Every command that reads a run."""
    table = ["export", "latest", "tokens", "--out", str(out / "tokens.parquet")]
    chosen = ["export", "latest", "preferences", "--schema", "trl", "--out", str(out / "p.jsonl")]
    query = ["sql", "latest", "select count(*) as n from trajectories", "--format", "json"]
    words = [["runs"], ["show", "latest", "--json"], ["audit", "latest", "--json"]]
    return [[*each, "--root", str(root)] for each in [*words, table, chosen, query]]


def assert_read(said: Said, out: Path) -> None:
    by_name = {words.split()[0]: each for words, each in said.items()}
    assert "run-1" in by_name["runs"][1]
    assert json.loads(by_name["show"][1])["updates"] == 3
    assert json.loads(by_name["audit"][1])["balanced"]
    assert json.loads(by_name["sql"][1])[0]["n"] > 0
    assert (out / "tokens.parquet").stat().st_size > 1000
    wrong = {words: each for words, each in said.items() if each[0] and "audit" not in words}
    assert wrong == {}


def test_commands_that_read_a_run_need_no_extra(
    root: Path, light: dict[str, str], tmp_path: Path
) -> None:
    said, modules = called(light, *reading(root, tmp_path))
    assert_read(said, tmp_path)
    assert modules.isdisjoint(HEAVY)


def test_commands_that_need_an_extra_say_so_in_one_line(
    root: Path, light: dict[str, str], tmp_path: Path
) -> None:
    recipe = str(ROOT / "recipes" / "quickstart.toml")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1 + 1", "answer": "2", "completion": "2"}\n')
    commands = {
        "train": ["train", recipe, "--root", str(tmp_path / "new")],
        "launch": ["launch", recipe, "--on", "slurm"],
        "generator": ["generator", "--connect", "latest", "--root", str(root)],
        "eval": ["eval", str(tmp_path), "--task", recipe],
        "replay": ["replay", "latest", "--update", "1", "--root", str(root)],
        "dashboard": ["dashboard", str(root)],
        "reward": ["reward", "train", str(ROOT / "recipes/reward-models/lines.toml")],
    }
    said, _ = called(light, *commands.values())
    for (code, out, err), name in zip(said.values(), commands, strict=True):
        assert code == 2, (name, out, err)
        extra = "dashboard" if name == "dashboard" else "train"
        assert err.startswith("error: "), (name, err)
        assert f"this needs headrace[{extra}]" in err, (name, err)
        assert err.count("\n") == 1, (name, err)
    assert not (tmp_path / "new").exists()


def test_the_doctor_says_what_the_base_can_do(light: dict[str, str]) -> None:
    """That training needs an extra is no fault of an installation for reading."""
    said, modules = called(light, ["doctor"], ["doctor", "--json"])
    assert_told(*said["doctor"])
    code, out, _ = said["doctor --json"]
    answer = json.loads(out)
    assert (code, answer["ok"], answer["trains"]) == (0, True, False)
    assert {each["level"] for each in answer["findings"]} == {"ok", "note"}
    assert modules.isdisjoint(HEAVY)


def assert_told(code: int, out: str, err: str) -> None:
    lines = {line[6:24].strip(): line for line in out.splitlines()}
    assert (code, err) == (0, ""), (out, err)
    assert lines["to read runs"].startswith("  ok")
    assert "exported" in lines["to read runs"]
    assert lines["to train"].startswith("note")
    assert "torch is not installed: this needs headrace[train]" in lines["to train"]
    assert "this needs headrace[dashboard]" in lines["to see pages"]
    assert "torch" not in lines
    assert "BAD" not in out
    assert out.splitlines()[-1] == "all good for reading runs; nothing here trains"


def test_a_base_without_its_own_packages_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_cli.commands.system.doctor.is_for_training", lambda: False)
    monkeypatch.setattr(
        "headrace_cli.commands.system.doctor.dependency_version",
        lambda name: None if name == "duckdb" else "1",
    )
    wrong = {f.topic: f.text for f in examine() if f.level == "bad"}
    assert "pip install" in wrong["duckdb"]


def test_what_a_module_imports_at_its_top_is_declared() -> None:
    tops = set[str]()
    for file in (file for name in PACKAGES for file in (ROOT / name).rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                tops |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                tops.add(node.module.partition(".")[0])
    base = {{"pyzmq": "zmq"}.get(name, name.replace("-", "_")) for name in BASE}
    brought = {"vllm", "openai", "pydantic_core", "starlette"}  # the last three by others
    known = {*sys.stdlib_module_names, *PACKAGES, *base, *brought}
    assert tops <= known.union(*EXTRAS.values())


def test_extras_of_the_distribution_are_those_that_the_program_knows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {
        extra: {line.split(">")[0].replace("-", "_") for line in lines}
        for extra, lines in project["optional-dependencies"].items()
    }
    assert declared == {extra: set(names) for extra, names in EXTRAS.items()}
    base = {line.split(">")[0].replace("-", "_") for line in project["dependencies"]}
    assert base.isdisjoint(HEAVY)
    assert {line.split("[")[0] for line in base} == {name.replace("-", "_") for name in BASE}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_base_installs_without_torch_and_reads_a_run(root: Path, tmp_path: Path) -> None:
    """In an environment of its own, by pip, with the versions of the lock."""
    source = tmp_path / "source"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in project["tool"]["setuptools"]["packages"]["find"]["include"][::2]:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    module = [sys.executable, "-m"]
    subprocess.run([*module, "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    lock = tmp_path / "versions"
    locked = (ROOT / "requirements" / "cpu.lock").read_text(encoding="utf-8").splitlines()
    lock.write_text("\n".join(line for line in locked if "==" in line))
    pip = [*module, "pip", "--python", python, "--disable-pip-version-check", "--no-input"]
    installed = subprocess.run(
        [*pip, "install", "--quiet", "--no-compile", "-c", str(lock), str(source)],
        capture_output=True, text=True,
    )  # fmt: skip
    unreachable = installed.returncode != 0 and "connection broken by" in installed.stderr
    if unreachable and not os.environ.get("CI"):
        pytest.skip("pip cannot reach its index")
    assert installed.returncode == 0, installed.stderr
    plugin = "lib/*/site-packages/generators/engines/vllm_plugin/*/entry_points.txt"
    assert len(list((tmp_path / "venv").glob(plugin))) == 1
    listed = subprocess.run(
        [*pip, "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    names = {row["name"].lower().replace("-", "_") for row in json.loads(listed.stdout)}
    assert names.isdisjoint(HEAVY)
    environment = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    said: Said = {}
    for words in reading(root, tmp_path):
        done = subprocess.run(
            [python, "-m", "headrace", *words], cwd=tmp_path, env=environment,
            capture_output=True, text=True,
        )  # fmt: skip
        said[" ".join(words)] = done.returncode, done.stdout, done.stderr
    assert_read(said, tmp_path)
    done = subprocess.run(
        [python, "-m", "headrace", "doctor"], cwd=tmp_path, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert_told(done.returncode, done.stdout, done.stderr)
