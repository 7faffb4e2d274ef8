"""The house rules that a linter cannot see: light imports, names, docstrings, sizes, test tree."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "headrace",
    "headrace_cli",
    "environments",
    "coordinator",
    "generators",
    "rewards",
    "learner",
    "storage",
    "dashboard",
    "tasks",
    "sandbox",
)
HEAVY = ("torch", "vllm", "deepspeed", "transformers")
ROLES = PACKAGES[2:]
LIGHT = ("headrace_cli.cli", "dashboard", "storage", "storage.queries")
MAX_LINES = 600
MAX_FILES = 20
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(path: Path) -> set[str]:
    """Full names of the modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module: str) -> None:
    code = (
        f"import sys, importlib; importlib.import_module({module!r});"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def loaded_by(*arguments: str) -> set[str]:
    """Top-level names of all that a Python process with these arguments imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"], ["--version"]])
def test_help_loads_no_role_and_nothing_heavy(arguments: list[str]) -> None:
    loaded = loaded_by("-m", "headrace", *arguments)
    assert "headrace" in loaded
    slow = {*HEAVY, "pydantic", "zmq", "rich", "numpy", "pandas", "sqlalchemy", "streamlit"}
    assert loaded & (slow | set(ROLES)) == set()


@pytest.mark.parametrize("module", ["coordinator.run", "learner.run"])
def test_what_a_role_imports_is_never_looked_through_for_garbage(module: str) -> None:
    """Neither meanwhile nor later; what comes later is. Compiling the module itself may begin one
    collection."""
    code = (
        "import gc, importlib; gc.collect(); began = [];"
        "gc.callbacks.append(lambda phase, _: began.append(phase));"
        f"importlib.import_module({module!r});"
        "print(began.count('start') < 2, gc.isenabled(), gc.get_freeze_count() > 50_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True"]


def test_commands_load_a_role_only_when_they_run() -> None:
    """Each command imports roles inside its functions: the modules alone load none."""
    paths = sorted((ROOT / "headrace_cli" / "commands").glob("*/*.py"))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    loaded = loaded_by("-c", f"import {', '.join(modules)}")
    assert loaded & {*HEAVY, *ROLES, "benchmarks", "sqlalchemy"} == set()


def test_what_commands_import_late_exists() -> None:
    """An import inside a function fails only when it runs; here each one is tried."""
    tried = 0
    for path in (ROOT / "headrace_cli").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom):
                    module = importlib.import_module(node.module or "")
                    for alias in node.names:
                        where = f"{name_of(path)}:{node.lineno}"
                        found = hasattr(module, alias.name) or importlib.util.find_spec(
                            f"{node.module}.{alias.name}"
                        )
                        assert found, f"{where} imports {alias.name}"
                        tried += 1
    assert tried > 10


def test_dashboard_pages_name_nothing_heavy() -> None:
    for path in (ROOT / "dashboard").rglob("*.py"):
        roots = {name.split(".")[0] for name in imports_of(path)}
        assert not roots & set(HEAVY), name_of(path)


def test_dashboard_reads_storage_through_queries_only() -> None:
    for path in (ROOT / "dashboard").rglob("*.py"):
        for name in imports_of(path):
            if name.split(".")[0] == "storage":
                assert name.startswith("storage.queries"), f"{name_of(path)} imports {name}"


def test_every_package_has_a_floor_and_an_order_of_its_own() -> None:
    """import-linter's `exhaustive` needs a container; the house itself has none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = [c for c in project["tool"]["importlinter"]["contracts"] if c["type"] == "layers"]
    (floors,) = [c["layers"] for c in contracts if "containers" not in c]
    standing = {name.strip() for floor in floors for name in floor.split("|")}
    there = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert standing == there == {*PACKAGES, "benchmarks"}
    inside = [c for c in contracts if "containers" in c]
    assert {name.split(".")[0] for c in inside for name in c["containers"]} == there
    assert all(c["exhaustive"] and "ignore_imports" not in c for c in inside)


def test_no_folder_holds_too_many_files() -> None:
    paths = [*MODULES, *(ROOT / "benchmarks").rglob("*.py")]
    counts = Counter(path.parent for path in paths if path.stem != "__init__")
    full = {name_of(folder): n for folder, n in counts.items() if n > MAX_FILES}
    assert full == {}


def test_packages_come_from_this_checkout() -> None:
    for package in PACKAGES:
        module = importlib.import_module(package)
        assert module.__file__ is not None, package
        assert Path(module.__file__).resolve().parent == ROOT / package


def test_packages_are_declared_typed_and_initialised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = project["tool"]["setuptools"]["packages"]["find"]["include"]
    for package in PACKAGES:
        assert package in declared
        assert f"{package}.*" in declared
        assert (ROOT / package / "py.typed").exists(), package
    for folder in {path.parent for path in MODULES}:
        assert (folder / "__init__.py").exists(), f"{name_of(folder)} has no __init__.py"


def test_no_module_has_a_name_of_the_standard_library() -> None:
    for path in MODULES:
        if path.stem not in ("__init__", "__main__"):
            assert path.stem not in sys.stdlib_module_names, name_of(path)


def test_modules_are_named_by_nouns() -> None:
    for path in MODULES:
        words = set(path.stem.split("_"))
        assert not words & {"utils", "util", "helpers", "misc", "common"}, name_of(path)


def test_every_module_opens_with_a_docstring() -> None:
    without = [
        name_of(path)
        for path in MODULES
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert without == []


def test_no_module_is_too_long() -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in MODULES
        if path.parent.name != "versions"  # a migration is a record, never edited again
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_imports_are_absolute() -> None:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name_of(path)}:{node.lineno} imports relatively"


def test_nothing_is_killed_by_name() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert "pkill" not in text, name_of(path)
        assert "killall" not in text, name_of(path)


def test_code_is_ascii() -> None:
    for path in MODULES:
        assert path.read_bytes().isascii(), name_of(path)


def test_every_test_folder_is_a_package() -> None:
    tests = ROOT / "tests"
    for folder in {path.parent for path in tests.rglob("*.py")}:
        assert (folder / "__init__.py").exists(), f"{name_of(folder)} has no __init__.py"
