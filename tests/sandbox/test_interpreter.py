"""What programs may import, and that the escapes are held when they may import more."""

import asyncio
import sys
import venv
from pathlib import Path

import pytest

from headrace.errors import UserError
from sandbox.escape_tests import escapes
from sandbox.interpreter import Interpreter, interpreter, interpreter_for
from sandbox.isolation.factory_client import CellFactoryClient
from sandbox.limits import Checks, Limits, Program, ProgramResult
from sandbox.pool import Sandbox
from tests.sandbox.layers import each_layer, need

NUMBERS = Program(
    "import numpy\ndef total(x): return numpy.sum(x)\ndef all_of(x): return numpy.all(x)\n",
    checks=Checks(("assert total([1, 2]) == 3", "assert all_of([1]) == True", "import numpy")),
)
LOOK = Program("import importlib.util as u\nprint([n for n in ('numpy', 'torch', 'neighbour', "
               "'headrace') if u.find_spec(n)])")  # fmt: skip


def run(layer: str, python: Interpreter | None, *programs: Program) -> list[ProgramResult]:
    need(layer)

    async def all_of_them() -> list[ProgramResult]:
        async with Sandbox(Limits(), parallel=1, layer=layer, python=python) as sandbox:
            return [await sandbox.run(program) for program in programs]

    return asyncio.run(all_of_them())


def make_environment(folder: Path) -> str:
    """A virtual environment with one package; its Python."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "neighbour.py").write_text("NAME = 'neighbour'\n")
    return str(folder / "bin" / "python")


@each_layer
def test_packages_are_seen_where_they_are_named(layer: str) -> None:
    (bare,) = run(layer, None, LOOK)
    assert bare.stdout == "[]\n"
    seen, checked = run(layer, interpreter_for(None, ["numpy"]), LOOK, NUMBERS)
    assert seen.stdout == "['numpy']\n"
    assert (checked.status, checked.passed, checked.errors) == ("ok", 3, ())


@each_layer
def test_another_environment_is_seen_as_a_whole_and_read_only(layer: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    python = interpreter_for(make_environment(tmp_path / "env"), [])
    write = Program(
        "import neighbour\nprint(neighbour.NAME)\nopen(neighbour.__file__, 'w').write('x')\n"
    )
    seen, wrote = run(layer, python, LOOK, write)
    assert seen.stdout == "['neighbour']\n"
    assert (wrote.status, wrote.stdout) == ("failed", "neighbour\n")
    assert (tmp_path / "env").exists()
    (file,) = (tmp_path / "env").rglob("neighbour.py")
    assert file.read_text() == "NAME = 'neighbour'\n"


def test_packages_bring_what_they_require() -> None:
    names = {Path(path).name for path in interpreter_for(None, ["pydantic"]).readable}
    assert {"pydantic", "pydantic_core", "annotated_types", "typing_extensions.py"} <= names
    assert "torch" not in names
    assert interpreter_for(None, []) == interpreter()


@pytest.mark.parametrize(
    ("python", "packages", "message"),
    [
        (None, ["no-such-package"], "'no-such-package': it is not installed"),
        ("/no/such/python", [], "cannot be asked"),
        ("/bin/false", [], "cannot be asked"),
        (sys.executable, ["numpy"], "not both"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    python: str | None, packages: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        interpreter_for(python, packages)


@each_layer
@pytest.mark.parametrize("name", ["secrets_installed", "secrets_environment", "files_read",
                                  "files_write", "files_interpreter", "disk_files"])  # fmt: skip
def test_escapes_at_what_is_seen_are_held(layer: str, name: str) -> None:
    need(layer)

    async def attempt() -> tuple[str, ...]:
        factory = await CellFactoryClient.start(interpreter_for(None, ["numpy"]))
        try:
            return (await escapes.attempt(name, layer, factory)).escaped
        finally:
            await factory.close()

    assert asyncio.run(attempt()) == ()


@pytest.mark.slow
@each_layer
def test_every_escape_is_held_with_packages(layer: str) -> None:
    outcomes = asyncio.run(escapes.try_all(need(layer), interpreter_for(None, ["numpy"])))
    assert {each.name: each.escaped for each in outcomes if each.escaped} == {}
